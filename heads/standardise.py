"""Rows by the means and spreads of the training rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.moments import refuse_not_finite, varies

By = Literal["column", "whole"]


class Standardise(nn.Module):
    """`(x - mean) / spread`, (..., d) to (..., d), from `fit` on; before it, rows stay as they are.

    The spread is each column's population standard deviation, or with `by = "whole"` their root mean square, one
    number that leaves the columns' proportions. A constant column (see `moments.varies`) becomes 0.
    """

    def __init__(self, width: int, by: By = "column") -> None:
        super().__init__()
        self.by = by
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("inverse", torch.ones(width))

    def fit(self, chunks: Iterable[Tensor]) -> None:
        """Mean and spread of rows (n, d), in float64; raises `VlpipeError` without any, or for NaN or infinity."""
        count, first = 0, torch.empty(0)
        total = square = torch.zeros(())
        for rows in chunks:
            if not len(rows):
                continue
            refuse_not_finite(rows, "training rows")
            rows = rows.double()
            if not count:  # all minus the first row: a constant column stays exactly constant
                first = rows[0].clone()
                total, square = torch.zeros_like(first), torch.zeros_like(first)
            count += len(rows)
            total = total + (rows - first).sum(dim=0)
            square = square + (rows - first).square().sum(dim=0)
        if not count:
            raise VlpipeError("no training rows to take means and spreads of; expected one or more")
        mean = first + total / count
        spread = (square / count - (total / count).square()).clamp(min=0).sqrt()
        self.get_buffer("mean").copy_(mean)
        self.get_buffer("inverse").copy_(self._inverse(spread, mean))

    def _inverse(self, spread: Tensor, mean: Tensor) -> Tensor:
        kept = varies(spread, mean)
        if self.by == "whole":
            spread = spread.square().mean().sqrt().expand(len(spread))
        return torch.where(kept, 1 / torch.where(kept, spread, 1), 0)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d), in the precision of the rows."""
        return (x - self.get_buffer("mean").to(x.dtype)) * self.get_buffer("inverse").to(x.dtype)
