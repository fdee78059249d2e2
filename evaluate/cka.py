"""Centred kernel alignment (JAM paper, Eqs. 4-5; Kornblith et al., 2019), and the same from unbiased HSIC."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vlpipe.evaluate.kernels import ROUNDING, Kernel, KernelName, UndefinedError, checked

Hsic = Callable[[Kernel, Kernel, Tensor], float]


def cka(x: Tensor, y: Tensor, kernel: KernelName = "linear", debiased: bool = False) -> float:
    """CKA of paired rows x (n, p) and y (n, q); see `Cka`."""
    return Cka(x, y, kernel, debiased).value(torch.arange(len(x)))


@dataclass(frozen=True)
class Cka:
    """HSIC of both kernels over the root of the product of each with itself.

    Biased it is in [0, 1], and far from 0 for unrelated rows that are fewer than their width. Debiased (Song et
    al., 2012, for HSIC; Nguyen et al., 2021, for CKA) it is near 0 for them, and may be below. Invariant to
    rotation, scale and shift of either side. Memory is one block of the matrices; linear kernels need O(n p q)
    time, RBF O(n^2 (p + q)). Raises what `checked` raises, and `UndefinedError` where one
    row alone differs; needs 4 pairs.
    """

    x: Tensor
    y: Tensor
    kernel: KernelName
    debiased: bool

    @cached_property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """Of both sides, from centred rows: their large mean would drown what differs."""
        sides = ((self.x, "images"), (self.y, "texts"))
        rows = [checked(side, 4, f"CKA, {name}") for side, name in sides]
        made = [Kernel.of(side - side.mean(dim=0), self.kernel) for side in rows]
        return made[0], made[1]

    @cached_property
    def own(self) -> float:
        """The denominator."""
        same = torch.arange(len(self.x))
        found = [self._hsic(kernel, kernel, same) for kernel in self.kernels]
        for value, kernel in zip(found, self.kernels, strict=True):
            if value <= ROUNDING * float(kernel.diagonal.square().mean()):
                raise UndefinedError("CKA: one row alone differs from the others; expected more spread")
        return math.sqrt(found[0] * found[1])

    def value(self, order: Tensor) -> float:
        """CKA where image i is paired with text `order[i]`."""
        return self._hsic(*self.kernels, order) / self.own

    def _hsic(self, k: Kernel, other: Kernel, order: Tensor) -> float:
        return hsic_unbiased(k, other, order) if self.debiased else hsic_biased(k, other, order)


def hsic_biased(k: Kernel, other: Kernel, order: Tensor) -> float:
    """`tr(HKH HLH) / (n - 1)^2` (Eq. 4), by sums: rows of L and its columns in `order`."""
    n, rows, columns = len(k), k.sums, other.sums[order]
    trace = inner(k, other, order) - 2 / n * float(rows @ columns) + float(rows.sum() * columns.sum()) / n**2
    return trace / (n - 1) ** 2


def hsic_unbiased(k: Kernel, other: Kernel, order: Tensor) -> float:
    """HSIC_1 (Song et al., 2012, Eq. 5): the U-statistic, from the matrices without their diagonals."""
    n, diagonal = len(k), other.diagonal[order]
    rows, columns = k.sums - k.diagonal, other.sums[order] - diagonal
    trace = inner(k, other, order) - float(k.diagonal @ diagonal)
    product = float(rows.sum() * columns.sum()) / ((n - 1) * (n - 2))
    return (trace + product - 2 / (n - 2) * float(rows @ columns)) / (n * (n - 3))


def inner(k: Kernel, other: Kernel, order: Tensor) -> float:
    """Sum over i, j of `K[i, j] L[order[i], order[j]]`."""
    if k.gamma is None and other.gamma is None:
        return float((k.x.T @ other.x[order]).square().sum())
    return sum(float((k.rows(b) * other.rows(order[b], order)).sum()) for b in k.blocks())
