"""The latents of an autoencoder, alone or under an editing head, by positions of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vlpipe.evaluate.contracts import IntArray
from vlpipe.heads.loop import batches
from vlpipe.heads.sae_model import SparseAutoencoder
from vlpipe.heads.sae_report import strongest_images

if TYPE_CHECKING:
    from vlpipe.evaluate.scoring import Scorer

ROWS = 1024  # images at once


@dataclass(frozen=True)
class Codes:
    """What an autoencoder head makes of a scorer's images; `names` has one a latent, its concept or its number."""

    scorer: Scorer
    head: Any
    names: Sequence[str]

    def strongest(self, count: int) -> tuple[Tensor, IntArray]:
        """Values and positions (latents, count) of the images that activate each latent the most, falling; where
        there are fewer the value is 0 and the position -1.
        """
        own = self.scorer.image_positions
        with torch.inference_mode():
            top, who = strongest_images(self.head, self.scorer.joined, own, count, ROWS)
        local = np.full(len(self.scorer.joined.image_ids) + 1, -1, dtype=np.int64)  # the last: position -1
        local[own] = np.arange(len(own))
        return top, local[who.numpy()]

    def times(self) -> IntArray:
        """How many of the images activate each latent, (latents,)."""
        found = np.zeros(len(self.names), dtype=np.int64)
        for positions in batches(self.scorer.image_positions, ROWS):
            with torch.inference_mode():
                values, indices = self.head.codes(self.scorer.joined.image_batch(positions).x["image"])
            found += np.bincount(indices[values > 0].numpy(), minlength=len(found))
        return found


def codes_of(scorer: Scorer) -> Codes | None:
    """None for a head without an autoencoder."""
    head: Any = getattr(scorer.head, "under", scorer.head)
    if not isinstance(getattr(head, "autoencoder", None), SparseAutoencoder):
        return None
    return Codes(scorer, head, head.names)
