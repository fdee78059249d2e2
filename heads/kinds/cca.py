"""Regularised canonical correlation analysis: the older closed-form common space, a baseline beside ridge."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.closed_form import ClosedForm, ClosedFormConfig
from vlpipe.heads.contracts import Batch, Shapes
from vlpipe.heads.vectors import unit, working

STRENGTHS = [10.0 ** (k / 2) for k in range(0, 11)]  # 1 to 100,000
EMPTY = 1e-9  # a direction with less than this share of the largest eigenvalue holds rounding noise


class Cca(ClosedForm):
    """Canonical variates of standardised image features and mean unit captions, compared by cosine.

    The strength is added to the eigenvalues of `X'X` and `Y'Y`, both summed over rows (Vinod, 1976). Each variate
    is weighted by its correlation to the power of `power` (Gong et al., 2014, take 4; 0 is plain CCA).
    """

    class Config(ClosedFormConfig):
        """`components`: how many variates; as many as there are when not given."""

        strengths: list[float] = Field(default=STRENGTHS, min_length=1)
        components: int | None = Field(default=None, ge=1)
        power: float = Field(default=1.0, ge=0)

    code: ClassVar[int] = 2

    def __init__(self, config: Config, shapes: Shapes) -> None:
        super().__init__(config)
        self.config = config
        widths = {"image": shapes.width("image"), "text": shapes.width("text")}
        self.widths = widths["image"], widths["text"]
        for side, width in widths.items():
            for name, size in (("map", (width, min(widths.values()))), ("mean", (width,)), ("scale", (width,))):
                self.register_buffer(f"{side}_{name}", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("correlations", torch.zeros(min(widths.values()), dtype=torch.float64))
        self.sides: tuple[_Side, _Side] | None = None
        self.cross = torch.empty(0)

    def see(self, image: Tensor, caption: Tensor) -> None:
        """Add rows to the sums: of both sides as one, for the products within a side, too."""
        both = torch.cat([image.double(), caption.double()], dim=1)
        self.moments.add(both, both.new_zeros(len(both), 0))

    def prepare_solutions(self) -> None:
        """Means, spreads, and one eigendecomposition a side; raises `VlpipeError` for too many components."""
        cut, (mean, _), scale = self.widths[0], self.moments.means(), self.moments.inverse_spread(*self.widths)
        self.set_buffers(image_mean=mean[:cut], text_mean=mean[cut:])
        self.set_buffers(image_scale=scale[:cut], text_scale=scale[cut:])
        gram, _ = self.moments.products(scale)
        self.sides = _Side(gram[:cut, :cut]), _Side(gram[cut:, cut:])
        self.cross = gram[:cut, cut:]
        most = min(side.rank for side in self.sides)
        if self.config.components is not None and self.config.components > most:
            raise VlpipeError(
                f"cca was asked for {self.config.components} components, and {self.moments.count} training rows "
                f"of widths {cut} and {len(mean) - cut} have {most}: ask for as many or fewer "
                f"(--set components={max(1, most)}), or train on more rows"
            )

    def solve(self, strength: float) -> None:
        """The variates of one strength; columns beyond the components are 0."""
        if self.sides is None:
            return
        left, right = (side.whitening(strength) for side in self.sides)
        u, values, vh = torch.linalg.svd(left.T @ self.cross @ right, full_matrices=False)
        k = min(self.config.components or len(values), len(values))
        weight = values[:k].clamp(0, 1) ** self.config.power
        found = {
            "correlations": values[:k],
            "image_map": left @ u[:, :k] * weight,
            "text_map": right @ vh[:k].T * weight,
        }
        for name, value in found.items():
            buffer = self.get_buffer(name)
            buffer.zero_()
            buffer[..., :k] = value

    def report(self) -> dict[str, float]:
        """What chose the strength, the first correlation, parameters, and FLOPs of an image and a text."""
        correlations = self.get_buffer("correlations")
        widths = len(self.get_buffer("image_map")) + len(self.get_buffer("text_map"))
        size = float(widths * int((correlations > 0).sum()))
        found = {"first_correlation": float(correlations[0]), "parameters": size, "flops": 2 * size}
        return super().report() | found

    def images(self, batch: Batch) -> Batch:
        """Unit variates (n, k)."""
        return Batch(batch.ids, {"image": self._variates("image", working(batch.x["image"]))})

    def texts(self, batch: Batch) -> Batch:
        """Unit variates (n, k) of unit texts."""
        return Batch(batch.ids, {"text": self._variates("text", unit(batch.x["text"]))})

    def _variates(self, side: str, rows: Tensor) -> Tensor:
        scaled = (rows - self.at(f"{side}_mean", rows)) * self.at(f"{side}_scale", rows)
        return unit(scaled @ self.at(f"{side}_map", rows))


class _Side:
    """The eigenvectors (p, rank) of one side's Gram matrix, without those that hold nothing."""

    def __init__(self, gram: Tensor) -> None:
        values, vectors = torch.linalg.eigh(gram)
        kept = values > EMPTY * values.max()
        self.values, self.vectors = values[kept], vectors[:, kept]
        self.rank = len(self.values)

    def whitening(self, strength: float) -> Tensor:
        """`W` with `W' (G + strength) W = 1`, (p, rank)."""
        whitening: Tensor = self.vectors / (self.values + strength).sqrt()
        return whitening
