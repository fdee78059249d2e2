"""The closed-form reference: one linear map from image features to the mean of an image's captions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.contracts import Batch, HeadConfig, Role, Shapes
from vlpipe.heads.moments import Moments, Solver
from vlpipe.heads.ranks import ranks
from vlpipe.heads.vectors import cosine_pairs, cosines, unit, working

STRENGTHS = [10 ** (k / 2) for k in range(-4, 13)]  # 0.01 to 1,000,000
RECALLS = (1, 5, 10)


class Ridge(nn.Module):
    """Ridge regression on standardised image features (n, p) and centred mean unit captions (n, q).

    Means and spreads are those of the training rows, at test too: captions are centred by the mean training
    caption target before the cosine, without which half of R@1 is lost. The strength is added to the
    eigenvalues of `X'X`, summed and not averaged over rows; the one of `strengths` with the best mean of
    recall@1, 5 and 10 of both directions on the validation images is taken, the stronger of equals.
    """

    class Config(HeadConfig):
        """`strength` is taken as it is; without it one of `strengths` is chosen on validation rows."""

        epochs: int = Field(default=1, ge=1, le=1)
        strength: float | None = Field(default=None, gt=0)
        strengths: list[float] = Field(default=STRENGTHS, min_length=1)

    roles: ClassVar[Mapping[str, Role]] = {"image": Role("image"), "text": Role("text", per_image=None)}
    code: ClassVar[int] = 1

    def __init__(self, config: Config, shapes: Shapes) -> None:
        super().__init__()
        self.config = config
        image, text = shapes.width("image"), shapes.width("text")
        for name, size in (
            ("weight", (image, text)),
            ("mean", (image,)),
            ("scale", (image,)),
            ("center", (text,)),
        ):
            self.register_buffer(name, torch.zeros(size, dtype=torch.float64))
        self.register_buffer("strength", torch.zeros((), dtype=torch.float64))
        self.moments = Moments()
        self.held_out: list[Batch] = []
        self.recall: float | None = None

    def update(self, batch: Batch) -> dict[str, float]:
        """Add rows to the sums."""
        texts, mask = _captions(batch)
        target = (texts * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        self.moments.add(batch.x["image"], target)
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
        if not self.moments.count:
            raise VlpipeError("ridge has seen no training rows; expected one or more")
        mean, center = self.moments.means()
        self._set(mean=mean, center=center, scale=self.moments.inverse_spread())
        solver = Solver(*self.moments.products())
        strength = self.config.strength or self._choose(solver)
        self._set(weight=solver.solve(strength), strength=torch.tensor(strength, dtype=torch.float64))
        self.held_out = []

    def report(self) -> dict[str, float]:
        """The strength in use, and the mean recall on validation images that it was chosen by."""
        found = {"strength": float(self.get_buffer("strength"))}
        return found if self.recall is None else found | {"validation_recall": self.recall}

    def images(self, batch: Batch) -> Batch:
        """Unit predictions (n, q) from image rows (n, p)."""
        return Batch(batch.ids, {"image": unit(self._standardised(batch) @ self._at("weight", batch))})

    def texts(self, batch: Batch) -> Batch:
        """Unit texts minus the mean training target, as unit rows again (n, q)."""
        rows = unit(batch.x["text"])
        return Batch(batch.ids, {"text": unit(rows - self.get_buffer("center").to(rows.dtype))})

    def score(self, images: Batch, texts: Batch) -> Tensor:
        """Cosines, (images, texts)."""
        return cosines(images.x["image"], texts.x["text"])

    def score_pairs(self, images: Batch, texts: Batch) -> Tensor:
        """Cosines, (rows,)."""
        return cosine_pairs(images.x["image"], texts.x["text"])

    def _at(self, name: str, batch: Batch) -> Tensor:
        return self.get_buffer(name).to(working(batch.x["image"]).dtype)

    def _standardised(self, batch: Batch) -> Tensor:
        return (working(batch.x["image"]) - self._at("mean", batch)) * self._at("scale", batch)

    def _set(self, **buffers: Tensor) -> None:
        for name, value in buffers.items():
            self.get_buffer(name).copy_(value)

    def _choose(self, solver: Solver) -> float:
        """The best strength on the validation rows."""
        if not self.held_out:
            raise VlpipeError(
                "ridge chooses its strength on validation images and there are none: give a split rule "
                "(--split-rule random:0.8/0.1/0.1@0) or a strength (--set strength=1000.0)"
            )
        inputs = torch.cat([self._standardised(batch) for batch in self.held_out])
        rows, owner = zip(*(_texts_and_owners(batch) for batch in self.held_out), strict=True)
        starts = np.cumsum([0, *(len(batch.ids) for batch in self.held_out)])
        image = np.concatenate([own + start for own, start in zip(owner, starts[:-1], strict=True)])
        texts = self.texts(Batch([], {"text": torch.cat(rows)})).x["text"]
        found = {}
        for strength in self.config.strengths:
            images = unit(inputs @ solver.solve(strength).to(inputs.dtype))
            found[strength] = _mean_recall(images, texts, image)
        best = max(sorted(found, reverse=True), key=lambda strength: found[strength])
        self.recall = found[best]
        return best


def _captions(batch: Batch) -> tuple[Tensor, Tensor]:
    """Unit captions (rows, K, q) and which of them there are (rows, K)."""
    texts = unit(batch.x["text"])
    mask = batch.mask.get("text", torch.ones(texts.shape[:-1], dtype=torch.bool))
    return (texts, mask) if texts.dim() == 3 else (texts.unsqueeze(1), mask.unsqueeze(1))


def _texts_and_owners(batch: Batch) -> tuple[Tensor, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The captions of a batch (n, q), and the row (n,) of the image that each belongs to."""
    texts, mask = _captions(batch)
    return texts[mask], mask.nonzero()[:, 0].numpy().astype(np.int64)


def _mean_recall(images: Tensor, texts: Tensor, image: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    """Mean of recall@1, 5 and 10 of both directions, without those that the gallery is too small for."""
    found = ranks(lambda i, t: images[i] @ texts[t].T, image, len(images))
    cutoffs = [k for k in RECALLS if k <= len(images)]
    return float(np.mean([side.recall(k) for side in (found.i2t, found.t2i) for k in cutoffs]))
