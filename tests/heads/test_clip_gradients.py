"""Clipping: torch's own result, and no silent zeros."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.gradient import clip_gradients


def two(scale: float) -> dict[str, nn.Parameter]:
    found = {
        "a": nn.Parameter(torch.zeros(3)),
        "b": nn.Parameter(torch.zeros(2, 2)),
        "idle": nn.Parameter(torch.zeros(1)),
    }
    found["a"].grad = torch.tensor([3.0, 0.0, 4.0]) * scale
    found["b"].grad = torch.full((2, 2), 6.0) * scale
    return found


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_equals_torch(scale: float) -> None:
    ours, peers = two(scale), two(scale)
    clip_gradients(ours, 1.0)
    nn.utils.clip_grad_norm_(peers.values(), 1.0)
    for name in ("a", "b"):
        assert torch.equal(ours[name].grad, peers[name].grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1e30, torch.inf, torch.nan])
def test_a_norm_that_is_not_finite_is_no_step(value: float) -> None:
    """1e30 is finite, its square is not: scaled by the norm, every gradient would be zero."""
    given = two(1.0)
    given["b"].grad[0, 0] = value  # type: ignore[index]
    with pytest.raises(VlpipeError, match="by 'b';"):
        clip_gradients(given, 1.0)
    assert torch.equal(given["a"].grad, torch.tensor([3.0, 0.0, 4.0]))  # type: ignore[arg-type]
