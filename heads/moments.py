"""Sums over rows, in float64, from which a linear regression follows whatever the batches were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.vectors import not_finite

CONSTANT = 1e-6  # a column whose spread is below this share of its mean is rounding noise around a constant,
NOTHING = torch.finfo(torch.float32).eps  # and below this share of the largest spread lost in any sum over columns


def varies(spread: Tensor, mean: Tensor) -> Tensor:
    """Which columns vary, (d,), of columns' spreads and means (d,): the others count as constant.

    A language model may scale some of its outputs by 1e-30: their spread is no less than their mean, yet dividing
    by it would turn what no cosine sees into one part in d of every row, and its gradients into overflow.
    """
    return (spread > CONSTANT * mean.abs()) & (spread > NOTHING * spread.max())


def refuse_not_finite(rows: Tensor, what: str, names: Sequence[str] = ()) -> None:
    """Raise `VlpipeError` where rows (n, ...) hold NaN or infinity, with the first one's name if given."""
    bad = not_finite(rows)
    if bad:
        first = f", the first is '{names[bad[0]]}'" if names else ""
        raise VlpipeError(
            f"{len(bad)} of {len(rows)} {what} hold values that are not finite{first}; expected finite numbers: "
            "look at what made them, an encoder or a run that they passed through"
        )


class Moments:
    """Counts, sums and products of paired rows x (n, p) and y (n, q), both minus the first pair seen.

    The shift keeps constant columns exactly constant and the differences of large sums small.
    """

    NAMES = ("x0", "y0", "count", "x", "y", "xx", "xy")

    def __init__(self, state: Mapping[str, Tensor] | None = None) -> None:
        self.sums: dict[str, Tensor] = dict(state or {})

    @property
    def count(self) -> int:
        """Rows seen."""
        return int(self.sums["count"]) if self.sums else 0

    def add(self, x: Tensor, y: Tensor) -> None:
        """See some rows; raises `VlpipeError` for NaN or infinity."""
        x, y = x.double(), y.double()
        refuse_not_finite(torch.cat([x, y], dim=1), "training rows")
        if not self.sums:
            self.sums = self._empty(x[0], y[0])
        sums = self.sums
        x, y = x - sums["x0"], y - sums["y0"]
        sums["count"] += len(x)
        sums["x"] += x.sum(dim=0)
        sums["y"] += y.sum(dim=0)
        sums["xx"] += x.T @ x
        sums["xy"] += x.T @ y

    @staticmethod
    def _empty(x0: Tensor, y0: Tensor) -> dict[str, Tensor]:
        products = {"xx": x0.new_zeros(len(x0), len(x0)), "xy": x0.new_zeros(len(x0), len(y0))}
        count = torch.tensor(0, dtype=torch.int64)
        first = {"x0": x0.clone(), "y0": y0.clone(), "count": count}
        return first | {"x": torch.zeros_like(x0), "y": torch.zeros_like(y0)} | products

    def means(self) -> tuple[Tensor, Tensor]:
        """Means of x (p,) and y (q,)."""
        sums = self.sums
        return sums["x0"] + sums["x"] / sums["count"], sums["y0"] + sums["y"] / sums["count"]

    def inverse_spread(self, *widths: int) -> Tensor:
        """One over the population standard deviation of each column of x (p,); 0 for a constant column.

        `widths`: of the vectors that stand beside each other in x; none if it is one.
        """
        sums, (mean, _) = self.sums, self.means()
        offset = sums["x"] / sums["count"]
        spread = (sums["xx"].diagonal() / sums["count"] - offset.square()).clamp(min=0).sqrt()
        parts = (torch.split(column, list(widths) or len(column)) for column in (spread, mean))
        kept = torch.cat([varies(*part) for part in zip(*parts, strict=True)])
        return torch.where(kept, 1 / torch.where(kept, spread, 1), 0)

    def products(self, scale: Tensor) -> tuple[Tensor, Tensor]:
        """`X'X` (p, p) and `X'Y` (p, q) of x, centred and times `scale` (p,), and centred y."""
        sums = self.sums
        x, y, n = sums["x"], sums["y"], sums["count"]
        gram = (sums["xx"] - torch.outer(x, x) / n) * torch.outer(scale, scale)
        cross = (sums["xy"] - torch.outer(x, y) / n) * scale[:, None]
        return gram, cross


class Solver:
    """`(G + s I)^-1 C` for any strength `s` from one eigendecomposition of the Gram matrix G (p, p)."""

    def __init__(self, gram: Tensor, cross: Tensor) -> None:
        values, self.vectors = torch.linalg.eigh(gram)
        self.values = values.clamp(min=0)
        self.rotated = self.vectors.T @ cross

    def solve(self, strength: float) -> Tensor:
        """The weights (p, q) of one strength; directions without any spread get 0."""
        divisor = self.values + strength
        floor = torch.finfo(divisor.dtype).eps * len(divisor) * self.values.max()
        kept = divisor > floor
        inverse = torch.where(kept, 1 / torch.where(kept, divisor, 1), 0)
        weight: Tensor = self.vectors @ (inverse[:, None] * self.rotated)
        return weight
