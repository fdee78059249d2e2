"""Which activations are largest, at the cost of a rough product: bfloat16 rules out nearly all, the rest is exact.

A product of two matrices in bfloat16 takes a quarter of float32's time on CPUs that have instructions for it. What
it can be wrong by is bounded, so that every activation which may be among the k largest is found, and only these
are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FAST = {"avx512_bf16", "amx_bf16"}  # what Linux calls the instructions
LEAST_COLUMNS = 4096  # from which a selection among fewer candidates pays
GROUPS = (32, 16, 8)  # columns that share a maximum
FEW = 64  # candidates of a row that are never too many
SPREAD = 4  # groups, of which the k largest are taken, and candidates: at most this many times k
ROUGH = 2.0**-7  # of a value: two roundings to bfloat16
UNSEEN = 2.0**-63  # of a value: the root of float32's smallest normal number
ROWS = 256  # whose rough activations are held at once
Pairs = tuple[Tensor, Tensor]  # rows and columns, row by row


@lru_cache(maxsize=1)
def fast_bfloat16() -> bool:
    """Whether this machine multiplies bfloat16 faster than float32, as far as Linux tells."""
    try:
        return bool(FAST & set(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split()))
    except OSError:
        return False


def grouping(columns: int, k: int) -> int | None:
    """How many columns share a maximum; None where a selection among fewer candidates does not pay."""
    if columns < LEAST_COLUMNS:
        return None
    return next((g for g in GROUPS if columns % g == 0 and SPREAD * k * g <= columns), None)


def group_maxima(scores: Tensor, group: int) -> Tensor:
    """The largest of every `group` columns of (n, m), (n, m / group)."""
    return scores.view(len(scores), group, -1).amax(dim=1)


def at_least(maxima: Tensor, k: int) -> Tensor:
    """A lower bound of each row's k-th largest score, (n, 1): that of the maxima of groups."""
    return maxima.topk(k, dim=1, sorted=False).values.amin(dim=1, keepdim=True)


def reaching(reach: NDArray[np.bool_], k: int) -> Pairs | None:
    """Rows and columns of what is true; None where a row has fewer than k or far more."""
    found = torch.from_numpy(np.flatnonzero(reach))
    rows = found // reach.shape[1]
    counts = torch.bincount(rows, minlength=len(reach))
    if int(counts.min()) < k or int(counts.max()) > max(SPREAD * k, FEW):  # not finite, or many equal ones
        return None
    return rows, found - rows * reach.shape[1]


def best(values: Tensor, pairs: Pairs, count: int, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each of `count` rows and their columns, (count, k) each, in falling order."""
    rows, columns = pairs
    counts = torch.bincount(rows, minlength=count)
    most = int(counts.max())
    place = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows] + rows * most
    candidates = values.new_full((count * most,), -torch.inf)
    candidates[place] = values
    column = columns.new_zeros(len(candidates))
    column[place] = columns
    found, chosen = candidates.view(-1, most).topk(k, dim=1)
    return found, column.view(-1, most).gather(1, chosen)


def screened(
    x: Tensor, weight: Tensor, bias: Tensor, k: int, dots: Callable[[Pairs], Tensor]
) -> tuple[Tensor, Tensor] | None:
    """The k largest of `weight x + bias` in each row, values and indices (n, k); None where it does not pay.

    `x` (n, d) and `weight` (latents, d) in float32; `dots` gives `weight[column] . x[row]` of pairs.
    """
    group = grouping(len(weight), k)
    if group is None or x.dtype != torch.float32 or x.is_cuda or not len(x) or not fast_bfloat16():
        return None
    pairs = _candidates(x, weight, bias, k, group)
    return None if pairs is None else best(dots(pairs) + bias[pairs[1]], pairs, len(x), k)


def _candidates(x: Tensor, weight: Tensor, bias: Tensor, k: int, group: int) -> Pairs | None:
    """All pairs whose activation may be among the k largest of its row."""
    rough_x, rough_weight, rough_bias = x.bfloat16(), weight.bfloat16(), bias.bfloat16()
    error = _error(x, rough_x, weight, rough_weight)
    error += (bias - rough_bias).abs().max() + bias.abs().max() * ROUGH  # a sum may be smaller than its parts
    buffer = rough_x.new_empty(min(ROWS, len(x)), len(weight))
    found: list[Pairs] = []
    for start in range(0, len(x), ROWS):
        part = slice(start, min(start + ROWS, len(x)))
        scores = torch.addmm(rough_bias, rough_x[part], rough_weight.T, out=buffer[: part.stop - start])
        some = _near_the_top(scores, error[part, None], k, group)
        if some is None:
            return None
        found.append((some[0] + start, some[1]))
    rows, columns = zip(*found, strict=True)
    return torch.cat(rows), torch.cat(columns)


def _near_the_top(scores: Tensor, error: Tensor, k: int, group: int) -> Pairs | None:
    """What may be among the k largest, of scores (n, m) in bfloat16 that were wrong by at most `error` (n, 1).

    The bits of positive numbers stand in the numbers' order, and below them all negative ones: whole numbers are
    compared, many times as fast. None where the bound is not positive.
    """
    bits = scores.view(torch.int16)
    low = at_least(group_maxima(bits, group).view(torch.bfloat16).float(), k)
    bound = ((low * (1 - ROUGH) - 2 * error) * (1 - 2 * ROUGH)).bfloat16()  # the last for its own rounding, too
    if not bool((bound > 0).all()):
        return None
    return reaching(bits.numpy() >= bound.view(torch.int16).numpy(), k)


def _error(x: Tensor, rough_x: Tensor, weight: Tensor, rough_weight: Tensor) -> Tensor:
    """What a product of each row with any latent may be wrong by before it is rounded, (n,).

    By Cauchy and Schwarz `|x . w - x' . w'| <= |x - x'| |w| + |x'| |w - w'|`; a sum of d products in float32
    adds `d 2^-23` of `|x'| |w'|` at most. `UNSEEN` is what a value may have whose square, or which itself, is lost
    below float32's smallest number. Not a number where a weight is not.
    """
    parts = [slice(start, start + ROWS) for start in range(0, len(weight), ROWS)]
    least = UNSEEN * math.sqrt(x.shape[1])
    off, largest = torch.stack([_norms(weight[n], rough_weight[n]) for n in parts]).amax(dim=0) + least
    moved, norm = (torch.linalg.vector_norm(rows, dim=1) + least for rows in (x - rough_x, rough_x.float()))
    found: Tensor = moved * largest + norm * (off + x.shape[1] * 2.0**-23 * (largest + off))
    return found


def _norms(rows: Tensor, rough: Tensor) -> Tensor:
    """The largest distance of a row to its rough one, and the largest norm, (2,); a few rows stay in the cache."""
    return torch.stack([torch.linalg.vector_norm(part, dim=1).max() for part in (rows - rough, rows)])
