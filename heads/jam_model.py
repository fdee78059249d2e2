"""JAM's autoencoders: funnels of linear layers, LayerNorm, SwiGLU, dropout and residual blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from vlpipe.heads.dropout import Dropout


class SwiGlu(nn.Module):
    """`silu(W x) * V x`, (..., d) to (..., d) (Shazeer, 2020)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.both = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d)."""
        gate, value = self.both(x).chunk(2, dim=-1)
        gated: Tensor = F.silu(gate) * value
        return gated


class ResidualMlp(nn.Module):
    """`x + MLP(x)`, two linear layers of the same width with SiLU between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., d)."""
        out: Tensor = x + self.mlp(x)
        return out


def funnel(width: int, hidden: Sequence[int], out: int, dropout: float) -> nn.Sequential:
    """Section 3 and appendix D.2: (n, width) to (n, out).

    Each hidden size is a linear layer, LayerNorm, SwiGLU, dropout, and a residual MLP block after it; a linear
    layer ends it. The decoder is the same with the ends swapped and the hidden sizes reversed.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise([width, *hidden]):
        layers += [nn.Linear(before, after), nn.LayerNorm(after), SwiGlu(after), Dropout(dropout, after)]
        layers += [ResidualMlp(after)]
    return nn.Sequential(*layers, nn.Linear(hidden[-1] if hidden else width, out))
