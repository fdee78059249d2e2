"""Sparse codes times dense rows, forward and backward, without a dense code.

Shapes throughout: `values` and `indices` (n, K), a code a row; `table` (latents, d), a latent a row. A dense step
multiplies (n, latents) by (latents, d) six times, these once: to find out which latents are active.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vlpipe.heads.sae_screen import Pairs, at_least, best, group_maxima, grouping, reaching, screened

CHUNK_BYTES, GPU_BYTES = 16 << 20, 256 << 20  # what activations of all latents may take at once: a CPU's cache


def largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row (n, m) and their columns, (n, k) each, in falling order.

    On a CPU with many columns: the k-th largest of the maxima of groups is a lower bound of the k-th largest, and
    few columns reach it.
    """
    group = grouping(scores.shape[1], k)
    if group is None or scores.is_cuda:
        return _topk(scores, k)
    bound = at_least(group_maxima(scores, group), k)
    pairs = reaching((scores >= bound).numpy(), k)
    if pairs is None:
        return _topk(scores, k)
    return best(scores[pairs], pairs, len(scores), k)


def _topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    found = scores.topk(k, dim=1)
    return found.values, found.indices


def bag(values: Tensor, indices: Tensor, table: Tensor) -> Tensor:
    """`sum_k values[k] table[indices[k]]`, (n, d); reads the rows of active latents only."""
    return F.embedding_bag(indices, table.to(values.dtype), per_sample_weights=values, mode="sum")


class Pattern:
    """Which latents are active in which rows, (n, K), and the same sorted by latent."""

    def __init__(self, indices: Tensor, latents: int) -> None:
        self.indices = indices
        self.latents = latents

    @cached_property
    def by_latent(self) -> tuple[Tensor, Tensor, Tensor]:
        """Places in the flattened code (n K,) latent by latent, the row of each, and where each latent begins."""
        places, starts = _by_latent(self.indices.flatten(), self.latents)
        return places, places // self.indices.shape[1], starts

    def gathered(self, values: Tensor, rows: Tensor) -> Tensor:
        """`sum_i values[i, k] rows[i]` over the rows where a latent is active, (n, K), (n, d) to (latents, d)."""
        places, row, starts = self.by_latent
        return F.embedding_bag(row, rows, starts, per_sample_weights=values.flatten()[places], mode="sum")

    def products(self, rows: Tensor, table: Tensor) -> Tensor:
        """`rows[i] . table[indices[i, k]]`, (n, d) and (latents, d) to (n, K)."""
        return _products(rows, table, *self.by_latent).view_as(self.indices)


def _by_latent(latents: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The places of some latents (m,) in the order of the latents, and where each of `count` latents begins."""
    keys = latents * len(latents) + torch.arange(len(latents), device=latents.device)
    # NumPy sorts unique whole numbers some hundred times as fast as torch does on a CPU.
    sorted_keys = keys.sort().values if keys.is_cuda else torch.from_numpy(np.sort(keys.numpy()))
    counts = torch.bincount(latents, minlength=count)
    return sorted_keys % max(1, len(latents)), counts.cumsum(0) - counts


def _products(rows: Tensor, table: Tensor, places: Tensor, row: Tensor, starts: Tensor) -> Tensor:
    """`rows[row] . table[latent]` of m pairs that are given latent by latent, in the order of their places (m,).

    So the table is read once, from its beginning to its end, and the rows stay in the cache.
    """
    ends = torch.cat([starts, starts.new_tensor([len(places)])])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that torch's sparse rows are in beta
        wanted = torch.sparse_csr_tensor(
            ends, row, rows.new_zeros(len(row)), (len(table), len(rows)), check_invariants=False
        )
        found: Tensor = torch.sparse.sampled_addmm(wanted, table, rows.T, beta=0.0).values()
    ordered = torch.empty_like(found)
    ordered[places] = found
    return ordered


def active(x: Tensor, weight: Tensor, bias: Tensor, k: int, among: Tensor | None = None) -> tuple[Tensor, Pattern]:
    """The k largest of `weight x + bias` in each row: values (n, k), not rectified, and which latents they are.

    `x` (n, d), `weight` (latents, d), `bias` (latents,). `among` (m,) are the only latents that may be chosen, at
    least k. Gradients reach the chosen latents only.
    """
    with torch.no_grad():
        rows, offset = (weight, bias) if among is None else (weight[among], bias[among])

        def dots(pairs: Pairs) -> Tensor:
            places, starts = _by_latent(pairs[1], len(rows))
            return _products(x, rows, places, pairs[0][places], starts)

        values, indices = screened(x, rows, offset, k, dots) or _selected(x, rows, offset, k)
        pattern = Pattern(indices if among is None else among[indices], len(weight))
    found: Tensor = _Active.apply(x, weight, bias, values, pattern)
    return found, pattern


def _selected(x: Tensor, weight: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and indices (n, k), some rows at a time through one buffer, which fits a CPU's cache."""
    budget = CHUNK_BYTES if x.device.type == "cpu" else GPU_BYTES
    step = max(1, budget // (len(weight) * x.element_size()))
    buffer = x.new_empty(min(step, len(x)), len(weight))
    values, indices = x.new_empty(len(x), k), torch.empty(len(x), k, dtype=torch.int64, device=x.device)
    for start in range(0, len(x), step):
        part = slice(start, min(start + step, len(x)))
        scores = torch.addmm(bias, x[part], weight.T, out=buffer[: part.stop - start])
        values[part], indices[part] = largest(scores, k)
    return values, indices


def decode(values: Tensor, pattern: Pattern, table: Tensor) -> Tensor:
    """`sum_k values[k] table[indices[k]]`, (n, d), with gradients to the values and to the table's active rows."""
    found: Tensor = _Decoded.apply(values, table, pattern)
    return found


class _Active(torch.autograd.Function):
    """Activations that are known, as a function of what they were computed from."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, values: Tensor, pattern: Pattern) -> Tensor:
        """The activations (n, k) as they are."""
        ctx.save_for_backward(x, weight)
        ctx.pattern = pattern
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        """To the rows, and to the weights and biases of active latents."""
        x, weight = ctx.saved_tensors
        pattern, grad = ctx.pattern, grads[0].contiguous()
        to_x = bag(grad, pattern.indices, weight) if ctx.needs_input_grad[0] else None
        to_bias = grad.new_zeros(len(weight)).index_add_(0, pattern.indices.flatten(), grad.flatten())
        return to_x, pattern.gathered(grad, x), to_bias, None, None


class _Decoded(torch.autograd.Function):
    """A code's rows of the table, weighted and summed."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, table: Tensor, pattern: Pattern) -> Tensor:
        """Rows (n, d)."""
        ctx.save_for_backward(values, table)
        ctx.pattern = pattern
        return bag(values, pattern.indices, table)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """To the values, and to the table's active rows."""
        values, table = ctx.saved_tensors
        pattern, grad = ctx.pattern, grads[0].contiguous()
        to_table = pattern.gathered(values, grad) if ctx.needs_input_grad[1] else None
        return pattern.products(grad, table), to_table, None
