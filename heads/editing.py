"""Editing images by texts as a call, and which latents a text keeps or removes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlpipe.cache_store.layout import Side
from vlpipe.foundation.errors import StaleError, UsageError, VlpipeError
from vlpipe.heads.contracts import Batch, Head, roles_on
from vlpipe.heads.folder import Run
from vlpipe.heads.upstream import Upstream
from vlpipe.heads.vectors import cosines, not_finite, unit

Features = Tensor | npt.NDArray[Any]


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
class Way:
    """One side's rows on their way to a head: the shape of one, and the finished runs that it passes."""

    shape: tuple[int, ...]
    through: Sequence[Upstream] = ()

    @classmethod
    def to(cls, run: Run, side: Side) -> Way:
        """From the encoder to a run's head; raises `StaleError` where a run on it has other weights now."""
        role = roles_on(run.roles, side)[0]
        steps = run.provenance[role]["through"]
        first, through = run, []
        for step in steps[:-1] if run.roles[role].stands else steps:
            passed = Run.open(run.folder.parent, step.partition("@")[0])
            through.append(Upstream(passed))
            if through[-1].identity != step:
                raise StaleError(
                    f"rows for run '{run.id}' pass run '{passed.id}', which has been trained again since and has "
                    "other weights; train this one again, too"
                )
            first = passed if len(through) == 1 else first
        return cls(tuple(first.record["shapes"][roles_on(first.roles, side)[0]]), through)


@dataclass(frozen=True)
class Editor:
    """A head that edits, as a call on features (tensors or arrays), finite throughout.

    `names` has one a latent: the concepts of a `cg_sae`, else the latents' numbers. `image` and `text` are the
    ways of rows to the head. A row is (d,); where a run's rows pass other runs first it is raw, as wide as the
    encoder of its side made it. Features may be on any device; results are on the head's.

    All calls raise `VlpipeError` for features of another shape than in training, or that are not finite.
    """

    head: Any
    names: Sequence[str]
    image: Way
    text: Way

    @classmethod
    def open(cls, runs: Path, run_id: str) -> Editor:
        """That of a finished run, on raw rows; raises what opening a run raises, and `UsageError` as `of` does."""
        run = Run.open(runs, run_id)
        return replace(cls.of(run.head()), image=Way.to(run, "image"), text=Way.to(run, "text"))

    @classmethod
    def of(cls, head: Head) -> Editor:
        """That of a head, on rows as it reads them (n, d); raises `UsageError` for one that does not edit."""
        if not isinstance(head, Editing):
            raise UsageError(
                f"a head of the class {type(head).__name__} does not edit; expected tevi or smartclip"
            )
        names = getattr(getattr(head, "under", None), "names", None)
        way = Way((head.width,))
        return cls(head, names or [str(n) for n in range(head.latents)], way, way)

    def named(self, texts: Sequence[str], text_features: Features) -> Editor:
        """The same with each latent named by its nearest text (Eq. 5); features (m, d) of m texts.

        Raises `UsageError` for a head whose coordinates are no directions, and for no texts.
        """
        if not isinstance(self.head, Coded):
            raise UsageError("this head edits coordinates, which have no direction of their own to be named by")
        rows = self._read("text", text_features).x["text"]
        if len(texts) != len(rows):
            raise VlpipeError(f"{len(texts)} names and {len(rows)} rows of features: expected one row a text")
        if not texts:
            raise UsageError("no text to name latents by: expected one or more")
        nearest = nearest_texts(self.head.directions().to(rows.dtype), rows)
        return replace(self, names=[texts[n] for n in nearest.tolist()])

    def edit(self, image_features: Features, text_features: Features) -> Tensor:
        """Row i's image edited by row i's text: (n, d) and (n, d) to (n, d), not of unit length.

        Raises `VlpipeError` for other numbers of rows.
        """
        images, keep = self._read("image", image_features), self._keep(text_features)
        if len(images.ids) != len(keep):
            raise VlpipeError(f"{len(images.ids)} images and {len(keep)} texts: expected pairs, row by row")
        with torch.no_grad():
            edited: Tensor = self.head.edited(images, keep)
        return edited

    def kept(self, text: Features, image: Features | None = None, top: int = 10) -> list[Strength]:
        """The latents that a text (d,) keeps most: by its mask, or by what it keeps of an image's activations."""
        return self._strongest(self._keep(self._one("text", text))[0], image, top)

    def removed(self, text: Features, image: Features | None = None, top: int = 10) -> list[Strength]:
        """The latents that a text (d,) removes most, likewise."""
        return self._strongest(1 - self._keep(self._one("text", text))[0], image, top)

    def _strongest(self, share: Tensor, image: Features | None, top: int) -> list[Strength]:
        if top < 0:
            raise UsageError(f"top = {top}: expected 0 or more")
        strength = share
        if image is not None:
            images = self._read("image", self._one("image", image))
            activations = (
                self.head.activations(images) if isinstance(self.head, Coded) else images.x["image"].abs()
            )
            strength = share * activations[0]
        values, latents = strength.topk(min(top, len(strength)))
        found = zip(latents.tolist(), values.tolist(), strict=True)
        return [Strength(n, self.names[n], value) for n, value in found if value > 0]

    def _keep(self, text_features: Features) -> Tensor:
        texts = self._read("text", text_features)
        with torch.no_grad():
            keep: Tensor = self.head.keep(texts)
        return keep

    def _way(self, side: Side) -> Way:
        return self.image if side == "image" else self.text

    def _one(self, side: Side, row: Features) -> Tensor:
        """A row as the only one of its batch."""
        found, shape = _tensor(side, row), self._way(side).shape
        if tuple(found.shape) != shape:
            article = "an" if side == "image" else "a"
            raise VlpipeError(f"{article} {side} of shape {_told(found.shape)}: expected {_told(shape)}")
        return found[None]

    def _read(self, side: Side, features: Features) -> Batch:
        """Features as the head's scoring reads them."""
        way, rows = self._way(side), _tensor(side, features)
        if not rows.ndim or tuple(rows.shape[1:]) != way.shape:
            expected = _told(("rows", *way.shape))
            raise VlpipeError(f"{side} features of shape {_told(rows.shape)}: expected {expected}, as in training")
        bad = not_finite(rows)
        if bad:
            told = ", ".join(map(str, bad[:5])) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
            raise VlpipeError(f"{side} features are NaN or infinite in rows {told}: expected finite numbers")
        if way.through:
            rows = rows.to("cpu", torch.float32)  # where the runs are, and as the cache gives them
        for step in way.through:
            rows = step(rows, side)
        rows = rows.to(next(chain(self.head.parameters(), self.head.buffers()), rows).device)
        read = self.head.images if side == "image" else self.head.texts
        with torch.no_grad():
            found: Batch = read(Batch([""] * len(rows), {roles_on(self.head.roles, side)[0]: rows}))
        return found


def _tensor(side: Side, features: Features) -> Tensor:
    """The features, arrays copied; raises `VlpipeError` for what holds no real numbers."""
    try:
        found = features if isinstance(features, Tensor) else torch.from_numpy(np.array(features))
    except (TypeError, ValueError) as error:
        raise VlpipeError(f"{side} features are no numbers ({error}); expected a tensor or an array") from None
    if found.is_complex():
        raise VlpipeError(
            f"{side} features are complex ({found.dtype}): expected real numbers; take their `.real`"
        )
    return found


def _told(shape: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
