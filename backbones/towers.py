"""What stands in for a tower, or behind one: cached rows, and finished runs that a text passes on its way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from vlpipe.foundation.errors import UsageError
from vlpipe.heads.upstream import Upstream


class CachedImages(nn.Module):
    """In place of an image tower: rows that were read from the cache."""

    def forward(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """`rows` (rows, *shape) as they are."""
        return tensors["rows"]


class Carried(nn.Module):
    """A text tower, then what the heads of finished runs make of its rows; these stay as they are.

    Raises `UsageError` for a run that gradients do not pass.
    """

    def __init__(self, tower: nn.Module, through: Sequence[Upstream], width: int, device: torch.device) -> None:
        super().__init__()
        self.tower = tower
        self.through = through  # a list: no parameters of this module
        for step in through:
            step.head.to(device).requires_grad_(False)
        start = torch.zeros(1, width, device=device, requires_grad=True)
        row = self.carried(start)
        if not row.requires_grad:
            names = "::".join(step.identity.partition("@")[0] for step in through)
            raise UsageError(f"gradients do not pass '{names}', so that a tower before it cannot learn")
        self.shape = tuple(row.shape[1:])

    def carried(self, rows: Tensor) -> Tensor:
        """Texts (rows, width) through the runs, (rows, *shape)."""
        for step in self.through:
            rows = step.transformed(rows, "text")
        return rows

    def forward(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """(rows, *shape) of prepared tensors."""
        return self.carried(self.tower(tensors))
