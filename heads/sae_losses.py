"""The losses of a TopK sparse autoencoder, as pure functions, and where its bias starts.

Shapes throughout: embeddings `x`, reconstructions and residuals (n, d).
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_STEPS, NEAR = 100, 1e-7  # of the geometric median: when it stops, as a share of the spread


def reconstruction(x: Tensor, x_hat: Tensor, variance: float | Tensor = 1.0) -> Tensor:
    """Eq. 2, `|x - x_hat|^2 / variance`, mean over rows: a scalar.

    With the training rows' `spread` for a variance it is the share that stays unexplained, whatever their scale.
    """
    return (x - x_hat).square().sum(dim=-1).mean() / variance


def auxiliary(residual: Tensor, residual_hat: Tensor) -> Tensor:
    """`|e - e_hat|^2` over the residual's variance in the batch: a scalar; 0 for a residual without variance.

    `residual` is detached: only what the dead latents say of it learns (Gao et al., 2024, appendix A.2).
    """
    residual = residual.detach()
    variance = spread(residual)
    error = (residual - residual_hat).square().sum(dim=-1).mean()
    return torch.where(variance > 0, error / torch.where(variance > 0, variance, 1), error.new_zeros(()))


def spread(x: Tensor) -> Tensor:
    """Mean squared distance to the mean, a scalar."""
    return (x - x.mean(dim=0)).square().sum(dim=-1).mean()


def geometric_median(x: Tensor) -> Tensor:
    """The point (d,) with the smallest sum of distances to the rows, by Weiszfeld's iteration from the mean."""
    found = x.mean(dim=0)
    least = torch.finfo(x.dtype).eps * (1 + found.norm())  # a row that it stands on has a finite weight
    stop = NEAR * spread(x).sqrt()
    for _ in range(MOST_STEPS):
        weights = 1 / torch.linalg.vector_norm(x - found, dim=1).clamp(min=least)
        before, found = found, weights @ x / weights.sum()
        if torch.linalg.vector_norm(found - before) <= stop:
            break
    return found
