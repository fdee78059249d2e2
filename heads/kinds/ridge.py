"""The closed-form reference: one linear map from image features to the mean of an image's captions."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from vlpipe.heads.closed_form import ClosedForm, ClosedFormConfig
from vlpipe.heads.contracts import Batch, Shapes
from vlpipe.heads.moments import Solver
from vlpipe.heads.vectors import unit, working

STRENGTHS = [10 ** (k / 2) for k in range(-4, 13)]  # 0.01 to 1,000,000


class Ridge(ClosedForm):
    """Ridge regression on standardised image features (n, p) and centred mean unit captions (n, q).

    Means and spreads are those of the training rows, at test too: captions are centred by the mean training
    caption target before the cosine, without which half of R@1 is lost. The strength is added to the
    eigenvalues of `X'X`, summed and not averaged over rows.
    """

    class Config(ClosedFormConfig):
        """Strengths of ridge."""

        strengths: list[float] = Field(default=STRENGTHS, min_length=1)

    code: ClassVar[int] = 2

    def __init__(self, config: Config, shapes: Shapes) -> None:
        super().__init__(config)
        image, text = shapes.width("image"), shapes.width("text")
        sizes = {"weight": (image, text), "mean": (image,), "scale": (image,), "center": (text,)}
        for name, size in sizes.items():
            self.register_buffer(name, torch.zeros(size, dtype=torch.float64))
        self.solver: Solver | None = None

    def see(self, image: Tensor, caption: Tensor) -> None:
        """Add rows to the sums."""
        self.moments.add(image, caption)

    def prepare_solutions(self) -> None:
        """Means, spreads, and one eigendecomposition."""
        mean, center = self.moments.means()
        scale = self.moments.inverse_spread()
        self.set_buffers(mean=mean, center=center, scale=scale)
        self.solver = Solver(*self.moments.products(scale))

    def solve(self, strength: float) -> None:
        """The map of one strength."""
        if self.solver is not None:
            self.set_buffers(weight=self.solver.solve(strength))

    def report(self) -> dict[str, float]:
        """What chose the strength; parameters of the map, and its FLOPs for one image, 2 a multiply-add."""
        size = float(self.get_buffer("weight").numel())
        return super().report() | {"parameters": size, "flops": 2 * size}

    def images(self, batch: Batch) -> Batch:
        """Unit predictions (n, q) from image rows (n, p)."""
        rows = working(batch.x["image"])
        scaled = (rows - self.at("mean", rows)) * self.at("scale", rows)
        return Batch(batch.ids, {"image": unit(scaled @ self.at("weight", rows))})

    def texts(self, batch: Batch) -> Batch:
        """Unit texts minus the mean training target, as unit rows again (n, q)."""
        rows = unit(batch.x["text"])
        return Batch(batch.ids, {"text": unit(rows - self.at("center", rows))})
