"""TEVI's objectives as pure functions of one batch; rows are image-caption pairs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vlpipe.heads.vectors import unit


def info_nce(cosines: Tensor, scale: Tensor | float) -> Tensor:
    """Half of the sum of both directions' mean surprise at the pairs of the diagonal: (B, B) to a scalar.

    With `S_ij = cos(v_i, t_j)` it is Eq. 1; with images edited by their own captions, `cos(v_i|i, t_j)`, Eq. 10;
    with every image edited by every caption, `cos(v_i|j, t_j)`, Eq. 11. `scale` is one over the temperature.
    """
    pairs = torch.arange(len(cosines), device=cosines.device)
    logits = scale * cosines
    return (F.cross_entropy(logits, pairs) + F.cross_entropy(logits.T, pairs)) / 2


def own_cosines(edited: Tensor, texts: Tensor) -> Tensor:
    """Eq. 10's `cos(v_i|i, t_j)` from edited embeddings (B, d) and unit texts (B, d): (B, B)."""
    return unit(edited) @ texts.T
