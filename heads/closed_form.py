"""What heads that are solved in closed form share: sums of rows, and a strength chosen on validation rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.contracts import Batch, HeadConfig, Role
from vlpipe.heads.moments import Moments
from vlpipe.heads.ranks import ranks
from vlpipe.heads.tables import IntArray
from vlpipe.heads.vectors import cosine_pairs, cosines, unit, working

RECALLS = (1, 5, 10)


class ClosedFormConfig(HeadConfig):
    """`strength` is taken as it is; without it one of `strengths` is chosen on validation rows."""

    epochs: int = Field(default=1, ge=1, le=1)
    strength: float | None = Field(default=None, gt=0)
    strengths: list[float] = Field(min_length=1)

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if min(self.strengths) <= 0:
            raise ValueError("strengths: expected numbers above 0")
        return self


class ClosedForm(nn.Module, ABC):
    """Image rows against the mean of an image's unit captions, solved after one pass.

    The strength with the best mean of recall@1, 5 and 10 of both directions on the validation images is taken,
    the stronger of equals.
    """

    roles: ClassVar[Mapping[str, Role]] = {"image": Role("image"), "text": Role("text", per_image=None)}

    def __init__(self, config: ClosedFormConfig) -> None:
        super().__init__()
        self.settings = config
        self.register_buffer("strength", torch.zeros((), dtype=torch.float64))
        self.moments = Moments()
        self.held_out: list[Batch] = []
        self.recall: float | None = None

    @abstractmethod
    def see(self, image: Tensor, caption: Tensor) -> None:
        """Add image rows (n, p) and mean unit captions (n, q) to the sums."""

    @abstractmethod
    def prepare_solutions(self) -> None:
        """All that does not depend on the strength."""

    @abstractmethod
    def solve(self, strength: float) -> None:
        """Set the weights."""

    @abstractmethod
    def images(self, batch: Batch) -> Batch:
        """Unit rows of the common space from image rows."""

    @abstractmethod
    def texts(self, batch: Batch) -> Batch:
        """Unit rows of the common space from captions."""

    def update(self, batch: Batch) -> dict[str, float]:
        """Add rows to the sums."""
        texts, mask = captions(batch)
        target = (texts * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        self.see(batch.x["image"], target)
        return {}

    def training_state(self) -> dict[str, Tensor]:
        """The sums so far."""
        return dict(self.moments.sums)

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `training_state` gave."""
        self.moments = Moments(state)

    def validate(self, batch: Batch) -> None:
        """Keep the rows that the strength is chosen on."""
        self.held_out.append(batch)

    def finish(self) -> None:
        """Solve; raises `VlpipeError` without training rows, or without validation rows to choose on."""
        name = type(self).__name__.lower()
        if not self.moments.count:
            raise VlpipeError(f"{name} has seen no training rows; expected one or more")
        if self.settings.strength is None and not self.held_out:
            raise VlpipeError(
                f"{name} chooses its strength on validation images and there are none: give a split rule "
                "(--split-rule random:0.8/0.1/0.1@0) or a strength (--set strength=1000.0)"
            )
        self.prepare_solutions()
        strength = self.settings.strength or self._choose()
        self.solve(strength)
        self.set_buffers(strength=torch.tensor(strength, dtype=torch.float64))
        self.held_out = []

    def report(self) -> dict[str, float]:
        """The strength in use, and the mean recall on validation images that it was chosen by."""
        found = {"strength": float(self.get_buffer("strength"))}
        return found if self.recall is None else found | {"validation_recall": self.recall}

    def score(self, images: Batch, texts: Batch) -> Tensor:
        """Cosines, (images, texts)."""
        return cosines(images.x["image"], texts.x["text"])

    def score_pairs(self, images: Batch, texts: Batch) -> Tensor:
        """Cosines, (rows,)."""
        return cosine_pairs(images.x["image"], texts.x["text"])

    def at(self, name: str, rows: Tensor) -> Tensor:
        """A buffer in the precision that rows are worked on in."""
        return self.get_buffer(name).to(working(rows).dtype)

    def set_buffers(self, **buffers: Tensor) -> None:
        """Copy values in by name."""
        for name, value in buffers.items():
            self.get_buffer(name).copy_(value)

    def _choose(self) -> float:
        """The best strength on the validation rows."""
        rows, owner = zip(*(_texts_and_owners(batch) for batch in self.held_out), strict=True)
        starts = np.cumsum([0, *(len(batch.ids) for batch in self.held_out)])
        image = np.concatenate([own + start for own, start in zip(owner, starts[:-1], strict=True)])
        left = Batch([], {"image": torch.cat([batch.x["image"] for batch in self.held_out])})
        right = Batch([], {"text": torch.cat(rows)})
        found = {}
        for strength in self.settings.strengths:
            self.solve(strength)
            v, t = self.images(left).x["image"].cpu(), self.texts(right).x["text"].cpu()
            found[strength] = _mean_recall(v, t, image)
        best = max(sorted(found, reverse=True), key=lambda strength: found[strength])
        self.recall = found[best]
        return best


def captions(batch: Batch) -> tuple[Tensor, Tensor]:
    """Unit captions (rows, K, q) and which of them there are (rows, K)."""
    texts = unit(batch.x["text"])
    mask = batch.mask.get("text", torch.ones(texts.shape[:-1], dtype=torch.bool, device=texts.device))
    return (texts, mask) if texts.dim() == 3 else (texts.unsqueeze(1), mask.unsqueeze(1))


def _texts_and_owners(batch: Batch) -> tuple[Tensor, IntArray]:
    """The captions of a batch (n, q), and the row (n,) of the image that each belongs to."""
    texts, mask = captions(batch)
    return texts[mask], mask.nonzero()[:, 0].cpu().numpy().astype(np.int64)


def _mean_recall(images: Tensor, texts: Tensor, image: IntArray) -> float:
    """Mean of recall@1, 5 and 10 of both directions, without those that the gallery is too small for."""
    found = ranks(lambda i, t: images[i] @ texts[t].T, image, len(images))
    cutoffs = [k for k in RECALLS if k <= len(images)]
    return float(np.mean([side.recall(k) for side in (found.i2t, found.t2i) for k in cutoffs]))
