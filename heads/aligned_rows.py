"""The text rows of a step of JAM or a projection: captions, then the hard negatives that there are.

Alone, a head reads those that are there. Heads that train as one need rows of one shape: there every place that a
negative may have is a row, and what is not there counts for nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vlpipe.heads.contracts import Batch


def negatives(batch: Batch) -> tuple[Tensor, Tensor]:
    """Hard negatives (B, K, d), and which of them there are (B, K)."""
    rows = batch.x["negative"]
    there = batch.mask.get("negative", torch.ones(rows.shape[:-1], dtype=torch.bool, device=rows.device))
    return (rows, there) if rows.dim() == 3 else (rows.unsqueeze(1), there.unsqueeze(1))


def places(batch: Batch) -> Tensor:
    """Which text rows there are when every place is one, (B + B K,)."""
    _, there = negatives(batch)
    return torch.cat([there.new_ones(len(there)), there.flatten()])


def packed(rows: Tensor, there: Tensor, *, every: bool) -> Tensor:
    """Of (B, K, d) those that are there, (m, d), or `every` place, (B K, d)."""
    return rows.flatten(0, 1) if every else rows[there]


def unpacked(rows: Tensor, there: Tensor, *, every: bool) -> Tensor:
    """The inverse of `packed`, (B, K, d); without `every`, zeros where there is none."""
    if every:
        return rows.view(*there.shape, rows.shape[-1])
    whole = rows.new_zeros(*there.shape, rows.shape[-1])
    whole[there] = rows
    return whole


def mean_square(found: Tensor, wanted: Tensor, there: Tensor | None) -> Tensor:
    """Mean squared difference per element of rows (n, d), a scalar; of those that are there (n,)."""
    if there is None:
        return F.mse_loss(found, wanted)
    return torch.where(there, (found - wanted).square().mean(dim=1), 0).sum() / there.sum()
