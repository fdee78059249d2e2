"""Kernel matrices that are never whole in memory: rows of them, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.vectors import not_finite

KernelName = Literal["linear", "rbf"]
BLOCK_BYTES = 64 << 20  # of one block of rows
SAMPLED = 2000  # rows, evenly spread, whose distances give the median: all pairs of more would not fit
CONSTANT = 1e-6  # rows that differ from their mean by less than this share of it are rounding noise around it

ROUNDING = 1e-12  # a sum below this share of the sum of its terms' squares is rounding


class UndefinedError(VlpipeError):
    """A statistic that these rows do not define, or whose value would be the same for any rows."""


def checked(rows: Tensor, least: int, what: str) -> Tensor:
    """The rows (n, d) in float64.

    Raises `VlpipeError` for rows that are no vectors or not finite, by number, `UndefinedError` for fewer than
    `least` and for rows that are all equal.
    """
    if rows.ndim != 2 or not rows.shape[1]:
        raise VlpipeError(f"{what}: rows of shape {tuple(rows.shape[1:])}; expected one vector a row, (width,)")
    rows = rows.double()
    bad = not_finite(rows)
    if bad:
        raise VlpipeError(f"{what}: rows {bad[:5]} of {len(bad)} are NaN or infinite; expected finite features")
    if len(rows) < least:
        raise UndefinedError(f"{what}: {len(rows)} pairs; expected {least} or more")
    mean = rows.mean(dim=0)
    if torch.linalg.vector_norm(rows - mean) <= CONSTANT * len(rows) ** 0.5 * torch.linalg.vector_norm(mean):
        raise UndefinedError(f"{what}: all {len(rows)} rows are equal; expected some that differ")
    return rows


@dataclass(frozen=True)
class Kernel:
    """`<x_i, x_j>`, or `exp(-gamma |x_i - x_j|^2)` where there is a gamma, of rows x (n, d) in float64."""

    x: Tensor
    gamma: float | None = None

    @classmethod
    def of(cls, rows: Tensor, name: KernelName) -> Kernel:
        """Linear, or RBF with the median distance s as bandwidth: `gamma = 1 / (2 s^2)`.

        The median is over the pairs of all rows, of 2,000 evenly spread ones where there are more. Raises
        `UndefinedError` where it is 0.
        """
        if name == "linear":
            return cls(rows)
        spread = torch.linspace(0, len(rows) - 1, min(len(rows), SAMPLED), dtype=torch.float64).long()
        median = float(torch.pdist(rows[spread]).median())
        if median == 0:
            raise UndefinedError("more than half of all pairs of rows are equal: the median distance is 0")
        return cls(rows - rows.mean(dim=0), 0.5 / median**2)

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, index: Tensor, order: Tensor | None = None) -> Tensor:
        """(index, n): some rows of the matrix, columns in `order`."""
        columns = self.x if order is None else self.x[order]
        products = self.x[index] @ columns.T
        if self.gamma is None:
            return products
        squared = self.x.square().sum(dim=1)
        own = squared[index][:, None] + (squared if order is None else squared[order])
        return products.mul_(-2).add_(own).clamp_(min=0).mul_(-self.gamma).exp_()

    def blocks(self) -> Iterator[Tensor]:
        """Positions of rows, as many at once as fit 64 MiB of the matrix."""
        yield from torch.split(torch.arange(len(self)), max(1, BLOCK_BYTES // (8 * len(self))))

    @cached_property
    def diagonal(self) -> Tensor:
        """(n,)."""
        return self.x.square().sum(dim=1) if self.gamma is None else torch.ones_like(self.x[:, 0])

    @cached_property
    def sums(self) -> Tensor:
        """(n,): sum of each row, diagonal included."""
        if self.gamma is None:
            return self.x @ self.x.sum(dim=0)
        return torch.cat([self.rows(index).sum(dim=1) for index in self.blocks()])
