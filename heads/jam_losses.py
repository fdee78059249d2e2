"""The objectives of "Escaping Plato's Cave: JAM", as pure functions of one batch's scaled cosines.

Every objective has one signature, `(Similarities, Terms) -> scalar`, and is half the sum of an image-to-text part
and Eq. 1's text-to-image part. Sums over candidates run over the texts that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Similarities:
    """`log sigma` of the paper, that is cosines over the temperature.

    `positive` (B, B): image i with caption j. `negative` (B, B, K): image i with hard negative k of caption j.
    `there` (B, K), bool: False where caption j has fewer than K.
    """

    positive: Tensor
    negative: Tensor
    there: Tensor


@dataclass(frozen=True)
class Terms:
    """What the paper leaves open, or varies.

    `printed`: Eqs. 1, 2 and 21 to the letter, without the positive in the denominator; else InfoNCE.
    `halved`: Eq. 2's factor 1/(2N); else 1/N. `alpha`: weight of contextNCE in Eq. 17.
    """

    printed: bool = False
    halved: bool = False
    alpha: float | Tensor = 0.5


def similarities(v: Tensor, p: Tensor, n: Tensor, there: Tensor, scale: Tensor | float) -> Similarities:
    """From unit images (B, d), captions (B, d), negatives (B, K, d) and their mask (B, K); scale is 1/tau."""
    return Similarities(scale * (v @ p.T), scale * torch.einsum("id,jkd->ijk", v, n), there)


def con(s: Similarities, terms: Terms) -> Tensor:
    """Eq. 1, CLIP's loss; hard negatives play no part."""
    return (_against_captions(s.positive, terms) + _against_captions(s.positive.T, terms)) / 2


def negcon(s: Similarities, terms: Terms) -> Tensor:
    """Eq. 2, image-to-text among all captions and all hard negatives."""
    size = len(s.positive)
    negatives = s.there.flatten().expand(size, -1)
    allowed = torch.cat([_captions_allowed(s.positive, terms), negatives], dim=1)
    candidates = torch.cat([s.positive, s.negative.flatten(1)], dim=1)
    to_text = _surprise(s.positive.diagonal(), candidates, allowed).mean()
    return (to_text * (0.5 if terms.halved else 1.0) + _against_captions(s.positive.T, terms)) / 2


def spread(s: Similarities, terms: Terms) -> Tensor:
    """Eqs. 3 and 16 to 18."""
    to_text = (1 - terms.alpha) * concon(s).mean() + terms.alpha * context_nce(s).mean()
    return (to_text + _against_captions(s.positive.T, terms)) / 2


def concon(s: Similarities) -> Tensor:
    """Eq. 19, (B,): an image's own context (caption and negatives) against all other texts; 0 for a lone image."""
    size = len(s.positive)
    own, own_there = _context(s)
    if size == 1:
        return own.new_zeros(1)
    other = ~torch.eye(size, dtype=torch.bool, device=own.device)
    allowed = torch.cat([other, (other[:, :, None] & s.there).flatten(1)], dim=1)
    texts = torch.cat([s.positive, s.negative.flatten(1)], dim=1)
    others = texts.masked_fill(~allowed, -torch.inf).logsumexp(dim=1, keepdim=True)
    each = torch.logaddexp(own, others) - own
    return torch.where(own_there, each, 0).sum(dim=1) / own_there.sum(dim=1)


def context_nce(s: Similarities) -> Tensor:
    """Eq. 20, (B,): an image's caption against its own negatives; 0 where it has none."""
    own, own_there = _context(s)
    return _surprise(s.positive.diagonal(), own, own_there)


OBJECTIVES: Mapping[str, Callable[[Similarities, Terms], Tensor]] = {
    "con": con,
    "negcon": negcon,
    "spread": spread,
}


def _context(s: Similarities) -> tuple[Tensor, Tensor]:
    """C(i): each image with its caption and its own negatives, and which there are, (B, 1 + K) both."""
    caption = s.positive.diagonal()[:, None]
    rows = torch.arange(len(caption), device=caption.device)
    own = torch.cat([caption, s.negative[rows, rows]], dim=1)
    return own, torch.cat([torch.ones_like(caption, dtype=torch.bool), s.there], dim=1)


def _against_captions(positive: Tensor, terms: Terms) -> Tensor:
    """One direction of Eq. 1 (Eq. 21), anchors in rows: a scalar."""
    return _surprise(positive.diagonal(), positive, _captions_allowed(positive, terms)).mean()


def _captions_allowed(positive: Tensor, terms: Terms) -> Tensor:
    """(B, B): the captions in an anchor's denominator."""
    every = torch.ones(positive.shape, dtype=torch.bool, device=positive.device)
    return every.fill_diagonal_(not terms.printed)


def _surprise(own: Tensor, candidates: Tensor, allowed: Tensor) -> Tensor:
    """`-log(exp own / sum of exp candidates)` over the allowed ones, (B,) from (B,), (B, C); 0 where none is.

    None is allowed with printed denominators in a batch of one image.
    """
    some = allowed.any(dim=1)
    kept = candidates.masked_fill(~(allowed | ~some[:, None]), -torch.inf)  # of -inf alone the gradient is NaN
    return torch.where(some, kept.logsumexp(dim=1) - own, 0)
