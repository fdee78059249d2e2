"""What an editing head does to images, by positions: kept shares, edited embeddings, activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vlpipe.evaluate.contracts import IntArray
from vlpipe.heads.editing import Coded, Editing, nearest_texts
from vlpipe.heads.vectors import unit

if TYPE_CHECKING:
    from vlpipe.evaluate.scoring import Scorer


@dataclass(frozen=True)
class Edits:
    """The editing side of a scorer."""

    scorer: Scorer
    head: Editing

    def keep(self, texts: IntArray) -> Tensor:
        """Each text's mask, (rows, latents)."""
        with torch.inference_mode():
            return self.head.keep(self.scorer.text_rows(texts))

    def edited(self, images: IntArray, keep: Tensor) -> Tensor:
        """Row i's image under row i of `keep` (rows, latents): unit rows (rows, d)."""
        with torch.inference_mode():
            return unit(self.head.edited(self.scorer.image_rows(images), keep))

    def all_kept(self, images: IntArray) -> Tensor:
        """(rows, latents) of ones: an autoencoder's reconstruction."""
        return torch.ones(len(images), self.head.latents, dtype=torch.float64)

    def original(self, images: IntArray) -> Tensor:
        """The images as they were before: unit rows (rows, d)."""
        with torch.inference_mode():
            return self.head.original(self.scorer.image_rows(images))

    def texts(self, texts: IntArray) -> Tensor:
        """Unit texts, (rows, d)."""
        return self.scorer.vectors("text", texts)

    def nearest(self, texts: IntArray) -> IntArray | None:
        """For each latent the row of its nearest text (Eq. 5), (latents,); None for a head without latents."""
        if not isinstance(self.head, Coded):
            return None
        return nearest_texts(self.head.directions().detach().double(), self.texts(texts)).numpy()

    def owners(self, texts: IntArray) -> IntArray | None:
        """For each text the latent nearest to it, (rows,), likewise."""
        if not isinstance(self.head, Coded):
            return None
        return nearest_texts(self.texts(texts), self.head.directions().detach().double()).numpy()

    def activations(self, images: IntArray) -> Tensor:
        """(rows, latents); only for a head with latents."""
        if not isinstance(self.head, Coded):
            raise TypeError("activations of a head without latents")
        with torch.inference_mode():
            return self.head.activations(self.scorer.image_rows(images))


def edits_of(scorer: Scorer) -> Edits | None:
    """None for a head that does not edit."""
    return Edits(scorer, scorer.head) if isinstance(scorer.head, Editing) else None
