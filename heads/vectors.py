"""Unit vectors and cosines, in float32 at least."""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 1e-12


def working(z: Tensor) -> Tensor:
    """The tensor in the precision that losses and scores are computed in: float64 stays, all else is float32."""
    return z if z.dtype == torch.float64 else z.to(torch.float32)


def not_finite(rows: Tensor) -> list[int]:
    """Places of the rows (n, ...) that hold NaN or infinity."""
    found: list[int] = (~rows.isfinite()).flatten(1).any(dim=1).nonzero()[:, 0].tolist()
    return found


def unit(z: Tensor) -> Tensor:
    """`z / (|z| + 1e-12)` along the last axis, (..., d) -> (..., d); a zero vector stays zero."""
    z = working(z)
    norm: Tensor = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    return z / (norm + EPS)


def cosines(images: Tensor, texts: Tensor) -> Tensor:
    """Dot products of unit rows (n, d) and (m, d): (n, m)."""
    return images @ texts.T


def cosine_pairs(images: Tensor, texts: Tensor) -> Tensor:
    """Dot products of unit rows (n, d) and (n, d), row by row: (n,)."""
    return (images * texts).sum(dim=-1)
