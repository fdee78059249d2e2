"""Dropout whose draws can be made beforehand: heads that train as one draw what each would draw alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """torch's dropout of rows of one width, (n, width) to (n, width), to the bit on a CPU.

    `given` (n, width), when set, is what rows are multiplied by instead of a draw of torch's own random numbers.
    """

    def __init__(self, p: float, width: int) -> None:
        super().__init__()
        self.p = p
        self.width = width
        self.given: Tensor | None = None

    def drawn(self, rows: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(rows, width): 0 where a value is dropped, else what keeps the mean; as `like` in dtype and device."""
        kept = like.new_empty(rows, self.width).bernoulli_(1 - self.p, generator=generator)
        return kept.div_(1 - self.p)

    def forward(self, x: Tensor) -> Tensor:
        """(n, width); as it is in evaluation mode."""
        if not (self.training and self.p):
            return x
        return x * (self.drawn(len(x), x) if self.given is None else self.given)
