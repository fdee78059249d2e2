"""Canonical correlations of two sets of paired rows, after a reduction of each (JAM paper, Eqs. 11-15)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vlpipe.evaluate.kernels import Kernel, KernelName, UndefinedError, checked

EXACT = 3000  # rows up to which the kernel's eigenvectors come from the whole matrix
STEPS = 8  # passes over a larger one
MARGIN = 14  # columns of a pass beyond the components asked for


def cca(x: Tensor, y: Tensor, components: int = 50, kernel: KernelName = "linear") -> float:
    """The largest canonical correlation between leading principal components of x (n, p) and y (n, q).

    `components` of each, or as many as have any variance; linear, or of an RBF kernel with median bandwidth.
    In [0, 1]; invariant to rotation, scale and shift. Raises what `checked` and `Canonical` raise.
    """
    made = Canonical(principal(x, components, kernel), principal(y, components, kernel), 1)
    return made.value(torch.arange(len(x)))


def svcca(x: Tensor, y: Tensor, variance: float = 0.99, components: int | None = None, first: int = 10) -> float:
    """Mean of the first correlations between the singular vectors that hold a share of the variance.

    Raghu et al., 2017. With `components` that many vectors are kept instead. `first` correlations are averaged, or
    as many as there are. Raises what `checked` and `Canonical` raise.
    """
    made = Canonical(singular(x, variance, components), singular(y, variance, components), first)
    return made.value(torch.arange(len(x)))


@dataclass(frozen=True)
class Canonical:
    """Correlations between the spans of two orthonormal bases of centred scores, (n, r) and (n, s).

    Raises `UndefinedError` where r + s reaches n: two such spans always meet, so that a correlation is 1 for any
    rows.
    """

    images: Tensor
    texts: Tensor
    first: int

    def __post_init__(self) -> None:
        n, r, s = len(self.images), self.images.shape[1], self.texts.shape[1]
        if r + s >= n:
            raise UndefinedError(
                f"canonical correlations of {r} and {s} components over {n} pairs are 1 for any features; "
                f"expected more than {r + s} pairs, or fewer components"
            )

    def value(self, order: Tensor) -> float:
        """Mean of the `first` largest where image i is paired with text `order[i]`."""
        found = torch.linalg.svdvals(self.images.T @ self.texts[order])[: self.first]
        return float(found.clamp(max=1).mean())


@dataclass(frozen=True)
class Directions:
    """Left singular vectors (n, rank) and singular values (rank,) of centred rows, those above rounding."""

    x: Tensor

    @cached_property
    def parts(self) -> tuple[Tensor, Tensor]:
        """Vectors and values, from a QR of the rows: no Gram matrix, which would square their spread."""
        q, r = torch.linalg.qr(self.x - self.x.mean(dim=0))
        u, s, _ = torch.linalg.svd(r, full_matrices=False)
        kept = s > s[0] * max(self.x.shape) * torch.finfo(s.dtype).eps
        return q @ u[:, kept], s[kept]


def reduced(rows: Tensor, dims: int) -> Tensor:
    """Scores (n, dims) on the leading principal components, or on all where there are fewer."""
    vectors, values = Directions(rows.double()).parts
    return vectors[:, :dims] * values[:dims]


def principal(rows: Tensor, components: int, kernel: KernelName = "linear") -> Tensor:
    """Orthonormal scores (n, components) on leading principal components, linear or of an RBF kernel."""
    rows = checked(rows, 3, f"CCA, {kernel}")
    if kernel == "linear":
        return Directions(rows).parts[0][:, :components]
    made = Kernel.of(rows, kernel)
    wanted = min(components, len(rows) - 1)
    return _leading(made, wanted) if len(rows) > EXACT else _exact(made, wanted)


def singular(rows: Tensor, variance: float, components: int | None) -> Tensor:
    """Left singular vectors (n, r) of centred rows that hold a share of the variance, or `components` of them."""
    vectors, values = Directions(checked(rows, 3, "SVCCA")).parts
    if components is None:
        share = values.square().cumsum(dim=0) / values.square().sum()
        components = int((share < variance).sum()) + 1
    return vectors[:, :components]


def _exact(kernel: Kernel, components: int) -> Tensor:
    whole = kernel.rows(torch.arange(len(kernel)))
    whole = whole - whole.mean(dim=0) - whole.mean(dim=1, keepdim=True) + whole.mean()
    values, vectors = torch.linalg.eigh(whole)
    return _top(values, vectors, components)


def _leading(kernel: Kernel, components: int) -> Tensor:
    """By a block Krylov space (Musco and Musco, 2015), from products with blocks of the matrix alone."""
    draw = torch.Generator().manual_seed(0)
    width = components + MARGIN
    start = torch.randn(len(kernel), width, dtype=torch.float64, generator=draw)
    spans = [torch.linalg.qr(_times(kernel, start))[0]]
    for _ in range(STEPS - 1):
        spans.append(torch.linalg.qr(_times(kernel, spans[-1]))[0])
    basis = torch.linalg.qr(torch.cat(spans, dim=1))[0]
    values, vectors = torch.linalg.eigh(basis.T @ _times(kernel, basis))
    found: Tensor = basis @ _top(values, vectors, components)
    return found


def _times(kernel: Kernel, columns: Tensor) -> Tensor:
    """`HKH V` for V (n, columns)."""
    centred = columns - columns.mean(dim=0)
    product = torch.cat([kernel.rows(index) @ centred for index in kernel.blocks()])
    return product - product.mean(dim=0)


def _top(values: Tensor, vectors: Tensor, components: int) -> Tensor:
    """Eigenvectors of the largest values, but for those that are rounding."""
    kept = int((values[-components:] > values[-1] * len(values) * torch.finfo(values.dtype).eps).sum())
    return vectors[:, -kept:].flip(1)
