"""Editing images by texts as a call, and which latents a text keeps or removes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.heads.contracts import Batch, Head, roles_on
from vlpipe.heads.folder import Run
from vlpipe.heads.vectors import cosines, unit


@runtime_checkable
class Editing(Protocol):
    """A head that edits images by texts; its score is the cosine of an edited image with its text.

    `texts` gives unit rows under the first text role. `width` is d, `latents` what a mask has values for.
    """

    width: int

    @property
    def latents(self) -> int:
        """Latents, or coordinates."""
        ...

    def keep(self, texts: Batch) -> Tensor:
        """(rows, latents) in [0, 1]: how much of each latent (or coordinate) each text keeps."""
        ...

    def edited(self, images: Batch, keep: Tensor) -> Tensor:
        """(rows, d): row i's image, edited by row i of `keep` (rows, latents)."""
        ...

    def original(self, images: Batch) -> Tensor:
        """(rows, d): unit embeddings as they were before, in the space of the texts."""
        ...


@runtime_checkable
class Coded(Protocol):
    """A head that reads an image as activations of latents, each a direction in the space of the texts."""

    def activations(self, images: Batch) -> Tensor:
        """(rows, latents), 0 where a latent is not active."""
        ...

    def directions(self) -> Tensor:
        """(latents, d)."""
        ...


def nearest_texts(directions: Tensor, texts: Tensor) -> Tensor:
    """TEVI's Eq. 5, the text (m, d) of the highest cosine for each direction (latents, d): (latents,)."""
    return cosines(unit(directions), unit(texts)).argmax(dim=1)


@dataclass(frozen=True)
class Strength:
    """A latent by name, and how much of it a text keeps or removes."""

    latent: int
    name: str
    strength: float


@dataclass(frozen=True)
class Editor:
    """A head that edits, as a call on raw features, rows as the encoder gave them.

    `names` has one a latent: the concepts of a `cg_sae`, else the latents' numbers.
    """

    head: Any
    names: Sequence[str]

    @classmethod
    def open(cls, runs: Path, run_id: str) -> Editor:
        """That of a finished run; raises what opening a run raises, `UsageError` for a head that does not edit."""
        return cls.of(Run.open(runs, run_id).head())

    @classmethod
    def of(cls, head: Head) -> Editor:
        """That of a head; raises `UsageError` for one that does not edit."""
        if not isinstance(head, Editing):
            raise UsageError(
                f"a head of the class {type(head).__name__} does not edit; expected tevi or smartclip"
            )
        names = getattr(getattr(head, "under", None), "names", None)
        return cls(head, names or [str(n) for n in range(head.latents)])

    def named(self, texts: Sequence[str], text_features: Tensor) -> Editor:
        """The same with each latent named by its nearest text (Eq. 5); features (m, d) of m texts.

        Raises `UsageError` for a head whose coordinates are no directions.
        """
        if not isinstance(self.head, Coded):
            raise UsageError("this head edits coordinates, which have no direction of their own to be named by")
        nearest = nearest_texts(self.head.directions(), self._texts(text_features).x["text"])
        return replace(self, names=[texts[n] for n in nearest.tolist()])

    def edit(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """Row i's image edited by row i's text: (n, d) and (n, d) to (n, d), not of unit length.

        Raises `VlpipeError` for features of another width, or of other numbers of rows.
        """
        if len(image_features) != len(text_features):
            raise VlpipeError(
                f"{len(image_features)} images and {len(text_features)} texts: expected pairs, row by row"
            )
        with torch.no_grad():
            edited: Tensor = self.head.edited(self._images(image_features), self._keep(text_features))
        return edited

    def kept(self, text: Tensor, image: Tensor | None = None, top: int = 10) -> list[Strength]:
        """The latents that a text (d,) keeps most: by its mask, or by what it keeps of an image's activations."""
        return self._strongest(self._keep(text[None])[0], image, top)

    def removed(self, text: Tensor, image: Tensor | None = None, top: int = 10) -> list[Strength]:
        """The latents that a text (d,) removes most, likewise."""
        return self._strongest(1 - self._keep(text[None])[0], image, top)

    def _strongest(self, share: Tensor, image: Tensor | None, top: int) -> list[Strength]:
        strength = share
        if image is not None:
            images = self._images(image[None])
            activations = (
                self.head.activations(images) if isinstance(self.head, Coded) else images.x["image"].abs()
            )
            strength = share * activations[0]
        values, latents = strength.topk(min(top, len(strength)))
        found = zip(latents.tolist(), values.tolist(), strict=True)
        return [Strength(n, self.names[n], value) for n, value in found if value > 0]

    def _keep(self, text_features: Tensor) -> Tensor:
        with torch.no_grad():
            keep: Tensor = self.head.keep(self._texts(text_features))
        return keep

    def _images(self, features: Tensor) -> Batch:
        return self._read("image", features)

    def _texts(self, features: Tensor) -> Batch:
        return self._read("text", features)

    def _read(self, side: Any, features: Tensor) -> Batch:
        """Features (n, d) as the head's scoring reads them."""
        role = roles_on(self.head.roles, side)[0]
        expected = self.head.width
        if features.ndim != 2 or features.shape[1] != expected:
            raise VlpipeError(
                f"{side} features of shape {tuple(features.shape)}: expected (rows, {expected}), as in training"
            )
        read = self.head.images if side == "image" else self.head.texts
        with torch.no_grad():
            found: Batch = read(Batch([""] * len(features), {role: features}))
        return found
