"""Centred kernel nearest-neighbour alignment (JAM paper, Eqs. 7-10; Huh et al., 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vlpipe.evaluate.kernels import ROUNDING, Kernel, KernelName, UndefinedError, checked

Estimator = Literal["paper", "unbiased"]


def cknna(
    x: Tensor, y: Tensor, k: int = 10, kernel: KernelName = "linear", estimator: Estimator = "paper"
) -> float:
    """CKNNA of paired rows x (n, p) and y (n, q); see `Cknna`."""
    return Cknna(x, y, k, kernel, estimator).value(torch.arange(len(x)))


@dataclass(frozen=True)
class Neighbours:
    """The k rows of highest kernel value of each row, never itself: positions (n, k) and kernel values (n, k)."""

    index: Tensor
    values: Tensor

    @classmethod
    def of(cls, kernel: Kernel, k: int, *, centred: bool, seed: int = 0) -> Neighbours:
        """Block by block. Among equal values a drawn one is kept, so that ties of two kernels do not agree.

        `centred`: values of HKH, else of K.
        """
        columns = torch.from_numpy(np.random.default_rng(seed).permutation(len(kernel)))
        place = torch.argsort(columns)
        index, values = [], []
        for rows in kernel.blocks():
            block = kernel.rows(rows, columns)
            block[torch.arange(len(rows)), place[rows]] = -torch.inf
            found = block.topk(k, dim=1)
            index.append(columns[found.indices])
            values.append(found.values)
        near, high = torch.cat(index), torch.cat(values)
        if centred:
            mean = kernel.sums / len(kernel)
            high = high - mean[:, None] - mean[near] + mean.mean()
        return cls(near, high)

    def reordered(self, order: Tensor) -> Neighbours:
        """Those of the matrix whose rows and columns are taken in `order`."""
        return Neighbours(torch.argsort(order)[self.index[order]], self.values[order])


@dataclass(frozen=True)
class Shared:
    """Pairs (i, j) that are neighbours on both sides: places and both kernels' values, (pairs,) each."""

    n: int
    i: Tensor
    j: Tensor
    a: Tensor
    b: Tensor

    @classmethod
    def of(cls, one: Neighbours, other: Neighbours) -> Shared:
        """`alpha(i, j)` of Eq. 7. Memory is n k^2 bytes."""
        i, p, q = (one.index[:, :, None] == other.index[:, None, :]).nonzero(as_tuple=True)
        return cls(len(one.index), i, one.index[i, p], one.values[i, p], other.values[i, q])

    def local(self) -> float:
        """`Align_local` (Eq. 9), of centred kernels."""
        return float(self.a @ self.b)

    def hsic_unbiased(self) -> float:
        """HSIC_1 of the masked kernels, as the public code has it."""
        n, zero = self.n, torch.zeros(self.n, dtype=torch.float64)
        ends, starts = zero.index_add(0, self.j, self.a), zero.index_add(0, self.i, self.b)
        product = float(self.a.sum() * self.b.sum()) / ((n - 1) * (n - 2))
        return (self._transposed() + product - 2 / (n - 2) * float(ends @ starts)) / (n * (n - 3))

    def _transposed(self) -> float:
        """Sum of `A[i, j] B[j, i]` over pairs that are there both ways round."""
        keys, turned = (self.i * self.n + self.j).numpy(), (self.j * self.n + self.i).numpy()
        _, here, there = np.intersect1d(keys, turned, assume_unique=True, return_indices=True)
        return float(self.a[torch.from_numpy(here)] @ self.b[torch.from_numpy(there)])


@dataclass(frozen=True)
class Cknna:
    """CKA over pairs that are among each other's k nearest, by kernel value, on both sides.

    `paper`: Eqs. 7-10, centred kernels under the mask, in [-1, 1]. `unbiased`: HSIC_1 of the masked, uncentred
    kernels, as in the code of Huh et al., but without the 1e-6 that it adds to the denominator; since the mask is
    not symmetric, it is not the same with the sides exchanged. Invariant to
    rotation and scale of either side, `paper` with RBF and after a reduction to principal components also to
    shift. Memory is one block of the matrices and n k^2 bytes, time O(n^2 (p + q)). Raises what `checked` raises,
    and `UndefinedError` for k of n or more and where no neighbourhood has any spread; needs 4 pairs.
    """

    x: Tensor
    y: Tensor
    k: int
    kernel: KernelName
    estimator: Estimator

    @cached_property
    def sides(self) -> tuple[Neighbours, Neighbours]:
        """Neighbours of images and of texts."""
        sides = ((self.x, "images"), (self.y, "texts"))
        rows = [checked(side, 4, f"CKNNA, {name}") for side, name in sides]
        if not 1 <= self.k < len(rows[0]):
            raise UndefinedError(f"CKNNA: {self.k} neighbours among {len(rows[0])} pairs; expected 1 to n - 1")
        kernels = [Kernel.of(side, self.kernel) for side in rows]
        centred = self.estimator == "paper"
        made = [Neighbours.of(k, self.k, centred=centred, seed=seed) for seed, k in enumerate(kernels)]
        return made[0], made[1]

    @cached_property
    def own(self) -> float:
        """The denominator."""
        found = [self._align(side, side) for side in self.sides]
        for value, side in zip(found, self.sides, strict=True):
            if value <= ROUNDING * float(side.values.square().mean()):
                raise UndefinedError("CKNNA: neighbours of one side have no spread; expected rows that differ")
        return math.sqrt(found[0] * found[1])

    def value(self, order: Tensor) -> float:
        """CKNNA where image i is paired with text `order[i]`."""
        images, texts = self.sides
        return self._align(images, texts.reordered(order)) / self.own

    def _align(self, one: Neighbours, other: Neighbours) -> float:
        shared = Shared.of(one, other)
        return shared.local() if self.estimator == "paper" else shared.hsic_unbiased()
