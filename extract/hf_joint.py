"""Patches of a transformers model in the space that both of its sides share.

A patch's vector is what the tower's own head makes of that patch alone, as in `clip_towers`: CLIP's final norm and
projection, which it gives its class token to, or SigLIP's pooling by attention, where a single key gets all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Joint = Callable[[Tensor], Tensor]  # patches of the last state (rows, patches, width) to (rows, patches, d)


def joint_reader(modules: nn.ModuleList, state: Tensor, pooled: Tensor) -> Joint | None:
    """For a tower of these modules; None where its head is of another kind.

    That is told by a last state (1, tokens, width) and what the model itself has made of it, `pooled` (1, d).
    """
    tower: Any = next((module for module in modules if hasattr(module, "post_layernorm")), None)
    if tower is None or state.ndim != 3:
        return None
    head: Any = getattr(tower, "head", None)
    projection: Any = next((module for module in modules if isinstance(module, nn.Linear)), None)

    def alone(patches: Tensor) -> Tensor:
        pooled: Tensor = head(patches.flatten(0, 1)[:, None])
        return pooled.view(*patches.shape[:2], -1)

    def projected(patches: Tensor) -> Tensor:
        joined: Tensor = projection(tower.post_layernorm(patches))
        return joined

    if head is not None:
        return alone if _close(head(state), pooled) else None
    if projection is not None:
        return projected if _close(projected(state[:, :1])[:, 0], pooled) else None
    return None


def _close(found: Tensor, pooled: Tensor) -> bool:
    return found.shape == pooled.shape and torch.allclose(found.float(), pooled.float(), rtol=1e-2, atol=1e-3)
