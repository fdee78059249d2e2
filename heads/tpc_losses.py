"""The terms of "Text as Partial Constraint" (TPC), as pure functions of unit vectors.

Shapes throughout: images `v` (B, d); text views `t` (B, K, d); `mask` (B, K), bool, False where an image has
fewer than K views (None: all are there). Averages run over the views that are there.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vlpipe.heads.vectors import unit


def _masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of (B, K) over the views that are there; 0 when there is none."""
    if mask is None:
        return values.mean()
    return torch.where(mask, values, 0).sum() / mask.sum().clamp(min=1)


def consensus(t: Tensor, mask: Tensor | None = None) -> Tensor:
    """Eq. 2, the consensus core `norm(sum_k t_k)`: (B, d)."""
    return unit((t if mask is None else t * mask.unsqueeze(-1)).sum(dim=1))


def disagreement(t: Tensor, c: Tensor, mask: Tensor | None = None) -> Tensor:
    """Eq. 3, the mean over views of `1 - (t_k . c)^2`: (B,); 0 for an image without views."""
    deviation = 1 - torch.einsum("bkd,bd->bk", t, c).square()
    if mask is None:
        return deviation.mean(dim=1)
    return torch.where(mask, deviation, 0).sum(dim=1) / mask.sum(dim=1).clamp(min=1)


def residual(t: Tensor, c_hat: Tensor) -> Tensor:
    """Eq. 5, the part of each text that is orthogonal to its core, `t - (t . c_hat) c_hat`: (..., d)."""
    return t - (t * c_hat).sum(dim=-1, keepdim=True) * c_hat


def residual_energy(t: Tensor, c_hat: Tensor) -> Tensor:
    """Section 4.6, `u_hat = 1 - (t . c_hat)^2`, what a single text leaves unsaid: (..., d) -> (...)."""
    return 1 - (t * c_hat).sum(dim=-1).square()


def non_commitment(v: Tensor, r: Tensor, mask: Tensor | None = None) -> Tensor:
    """Eq. 6, the mean of `(v_i . r_ik)^2`, with residuals `r` (B, K, d): a scalar."""
    return _masked_mean(torch.einsum("bd,bkd->bk", v, r).square(), mask)


def core_temperature(u: Tensor, tau_0: float | Tensor, gamma: float | Tensor) -> Tensor:
    """`tau_0 (1 + gamma u_i)`, clipped to `[tau_0, 3 tau_0]` (appendix B.4): (B,)."""
    found: Tensor = (tau_0 * (1 + gamma * u)).clamp(tau_0, 3 * tau_0)  # type: ignore[arg-type]
    return found


def core(v: Tensor, c: Tensor, tau: Tensor) -> Tensor:
    """Eq. 7, InfoNCE between images and consensus cores `c` (B, d): a scalar, 0 for a batch of one.

    It is the sum of both directions, and both divide row i by the anchor's own `tau_i` (B,).
    """
    anchors = torch.arange(len(v), device=v.device)
    logits = v @ c.T
    to_cores = F.cross_entropy(logits / tau[:, None], anchors)
    to_images = F.cross_entropy(logits.T / tau[:, None], anchors)
    return to_cores + to_images


def agreement(c_hat: Tensor, c: Tensor, mask: Tensor | None = None) -> Tensor:
    """Eq. 8, the mean of `|c_hat_ik - c_i|^2`, with single-view cores `c_hat` (B, K, d): a scalar."""
    return _masked_mean((c_hat - c.unsqueeze(1)).square().sum(dim=-1), mask)


def alignment(v: Tensor, c_hat: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean of `1 - v_i . c_hat_ik`: a scalar. An option beside the paper, for frozen images."""
    return _masked_mean(1 - torch.einsum("bd,bkd->bk", v, c_hat), mask)
