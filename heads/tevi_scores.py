"""Exact similarities of edited images with texts, for all pairs of a block, without edited embeddings.

"TEVI", Eq. 9: image i under text j is `v_ij = sum_k m_jk z_ik W_k + b`, over the image's K active latents.
With `W_i` their decoder rows scaled by their values, (K, d), its cosine with the unit text t_j follows from

    v_ij . t_j = sum_k m_jk (W_i t_j)_k + b . t_j
    |v_ij|^2   = m' (W_i W_i') m + 2 (W_i b) . m + b . b

Shapes throughout: `values`, `indices` (n, K), an image's code a row; `decoder` (latents, d), `bias` (d,); `keep`
(m, latents), a text's mask a row; `texts` (m, d), unit rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vlpipe.heads.sae_sparse import GPU_BYTES, bag
from vlpipe.heads.vectors import EPS, cosine_pairs, unit

CPU_BYTES = 2 << 20  # what the masks of some images at once may take: a CPU's cache
LOST = 1e-5  # where rounding makes more than this share of a squared norm, the pair is edited by itself
NOISE = 16  # an edited row shorter than so many rounding errors of its parts is zero
PAIRS = 8192  # that are edited at once


def edited_cosines(
    values: Tensor, indices: Tensor, decoder: Tensor, bias: Tensor, keep: Tensor, texts: Tensor
) -> Tensor:
    """`S_ij = cos(v_ij, t_j)`, (n, m), with gradients to `keep` and `texts` only.

    An edited embedding whose parts cancel has the cosine 0 with any text.
    """
    kept = keep.T.contiguous()  # (latents, m): a latent's masks lie side by side
    along = bag(values, indices, kept * (decoder @ texts.T)) + texts @ bias
    linear = values * (decoder @ bias)[indices]
    squared = _Energy.apply(kept, values, indices, decoder, linear) + bias @ bias
    found = over_norm(along, squared)
    pairs = _cancelled(squared.detach(), values, indices, decoder, bias, keep)
    if not len(pairs[0]):
        return found
    parts = zip(*(torch.split(side, PAIRS) for side in pairs), strict=True)
    exact = [
        _pairs(values[i] * keep[j.unsqueeze(1), indices[i]], indices[i], decoder, bias, texts[j]) for i, j in parts
    ]
    return found.index_put(pairs, torch.cat(exact))


def edited_rows(values: Tensor, indices: Tensor, decoder: Tensor, bias: Tensor, keep: Tensor) -> Tensor:
    """Eq. 9 for row i's image and row i's mask, (n, d); `keep` is (n, latents). Zero where the parts cancel."""
    masked = values * keep.gather(1, indices)
    return _rows(masked, indices, decoder, bias, torch.finfo(masked.dtype).eps)[0]


def own_pairs(
    values: Tensor, indices: Tensor, decoder: Tensor, bias: Tensor, keep: Tensor, texts: Tensor
) -> Tensor:
    """The cosine of row i's image, edited by row i's mask, with row i's text, (n,)."""
    masked = values * keep.gather(1, indices)
    eps = torch.finfo(masked.dtype).eps
    rows, left = _rows(masked, indices, decoder, bias, eps)
    found = cosine_pairs(unit(rows), texts)
    near = (left < eps / LOST).nonzero()[:, 0]
    if not len(near):
        return found
    return found.index_put((near,), _pairs(masked[near], indices[near], decoder, bias, texts[near]))


def over_norm(along: Tensor, squared: Tensor) -> Tensor:
    """`along / (sqrt(squared) + 1e-12)`; rounding below 0 counts as 0, where the result's gradient is 0, too."""
    there = squared > 0
    length = torch.where(there, squared, 1).sqrt() * there
    return along / (length + EPS)


def _cancelled(
    squared: Tensor, values: Tensor, indices: Tensor, decoder: Tensor, bias: Tensor, keep: Tensor
) -> tuple[Tensor, Tensor]:
    """Images and texts of the pairs whose squared norm (n, m) is a difference of much larger numbers."""
    limit = torch.finfo(squared.dtype).eps / LOST
    own = values.square() * decoder.square().sum(dim=1)[indices]
    rest = bias @ bias
    image, text = (squared < limit * (own.sum(dim=1) + rest).unsqueeze(1)).nonzero(as_tuple=True)
    found = [
        squared[i, j] < limit * ((own[i] * keep[j.unsqueeze(1), indices[i]].square()).sum(dim=1) + rest)
        for i, j in zip(torch.split(image, PAIRS), torch.split(text, PAIRS), strict=True)
    ]
    sure = torch.cat(found)
    return image[sure], text[sure]


def _pairs(masked: Tensor, indices: Tensor, decoder: Tensor, bias: Tensor, texts: Tensor) -> Tensor:
    """Cosines of edited rows with row i's text, (n,), from masked codes (n, K); summed in float64."""
    used, places = torch.unique(indices, return_inverse=True)  # not the whole decoder in float64
    eps = torch.finfo(masked.dtype).eps
    rows, _ = _rows(masked.double(), places, decoder[used].double(), bias.double(), eps)
    return cosine_pairs(unit(rows), texts.double()).to(masked.dtype)


def _rows(masked: Tensor, indices: Tensor, decoder: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`sum_k masked_k W_k + b`, (n, d), and what is left of its parts' squared norms, (n,).

    Zero where no more is left than rounding by shares of `eps`.
    """
    rows = bag(masked, indices, decoder) + bias
    with torch.no_grad():
        parts = (masked.square() * decoder.square().sum(dim=1)[indices]).sum(dim=1) + bias @ bias
        left = rows.square().sum(dim=1) / parts.clamp(min=torch.finfo(parts.dtype).tiny)
    return rows * (left > (NOISE * eps) ** 2).unsqueeze(1), left


class _Energy(torch.autograd.Function):
    """`m' (W_i W_i') m + 2 linear_i . m` for every image and text, (n, m), from `kept` (latents, m).

    Some images at a time, so that their masks stay in the cache: the masks of all pairs would not fit the memory.
    The backward pass computes them again.
    """

    @staticmethod
    def forward(
        ctx: Any, kept: Tensor, values: Tensor, indices: Tensor, decoder: Tensor, linear: Tensor
    ) -> Tensor:
        """(n, m)."""
        ctx.save_for_backward(kept, values, indices, decoder, linear)
        energy = kept.new_empty(len(values), kept.shape[1])
        for rows, masks, slope in _parts(kept, values, indices, decoder, linear):
            slope += linear[rows].unsqueeze(2)  # once more: it counts twice
            torch.sum(slope.mul_(masks), dim=1, out=energy[rows])
        return energy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """To `kept` alone: `2 (W_i W_i' m + linear_i)`, summed over the images that a latent is active in."""
        kept, values, indices, decoder, linear = ctx.saved_tensors
        found = torch.zeros_like(kept)
        for rows, _, slope in _parts(kept, values, indices, decoder, linear):
            slope.mul_(2).mul_(gradients[0][rows].unsqueeze(1))
            found.index_add_(0, indices[rows].flatten(), slope.flatten(0, 1))
        return found, None, None, None, None


def _parts(
    kept: Tensor, values: Tensor, indices: Tensor, decoder: Tensor, linear: Tensor
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Slices of images with their masks and `W_i W_i' m + linear_i`, (images, K, m) each, in reused memory."""
    active, texts = indices.shape[1], kept.shape[1]
    budget = CPU_BYTES if kept.device.type == "cpu" else GPU_BYTES
    step = min(len(values), max(1, budget // max(1, active * texts * kept.element_size())))
    room = kept.new_empty(2, step * active, texts)
    for start in range(0, len(values), max(1, step)):
        rows = slice(start, min(start + step, len(values)))
        count = rows.stop - rows.start
        masks, slope = (half[: count * active].view(count, active, texts) for half in room)
        torch.index_select(kept, 0, indices[rows].flatten(), out=masks.view(count * active, texts))
        scaled = values[rows].unsqueeze(2) * decoder[indices[rows]]  # (images, K, d)
        if active <= decoder.shape[1]:
            torch.bmm(scaled @ scaled.transpose(1, 2), masks, out=slope)
        else:
            torch.bmm(scaled, scaled.transpose(1, 2) @ masks, out=slope)
        slope += linear[rows].unsqueeze(2)
        yield rows, masks, slope
