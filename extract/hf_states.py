"""What is read from a transformers model's answer: its states by layer, pooled, and its own pooled vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vlpipe.cache_store.layout import ArraySpec
from vlpipe.extract.output_names import layer_name, layer_of

Pool = Callable[[Tensor, str], Tensor]  # a state in float32 and a pooling to rows


@dataclass(frozen=True)
class Tower:
    """One side of a model: how it is called, what it is made of, and what may be read from it.

    `head` names the model's own pooled vector: "pooled" in the space that both sides of a model share, "pooler"
    that of a model of one side; None where there is none, or where the checkpoint lacks its weights.
    """

    call: Callable[..., Any]
    modules: nn.ModuleList
    config: Any
    head: str | None
    device: torch.device
    dtype: torch.dtype


def answer_names(answer: Any, head: str | None, poolings: Callable[[Tensor], Iterable[str]]) -> list[str]:
    """Every output of an answer with hidden states; `poolings` says which a state has."""
    names = [head] if head and getattr(answer, "pooler_output", None) is not None else []
    names += poolings(answer.last_hidden_state)
    for layer, state in enumerate(answer.hidden_states):
        names += [layer_name(layer, pooling) for pooling in poolings(state)]
    return names


def read_answer(answer: Any, outputs: Iterable[str], pool: Pool) -> dict[str, Tensor]:
    """The asked outputs in float32, rows first; those without a layer read the last state."""
    rows = {}
    for name in outputs:
        if name in ("pooled", "pooler"):
            rows[name] = answer.pooler_output.float().flatten(1)
            continue
        layer, pooling = layer_of(name) or (None, name)
        state = answer.last_hidden_state if layer is None else answer.hidden_states[layer]
        rows[name] = pool(state.float(), pooling)
    return rows


def specs(rows: Mapping[str, Tensor]) -> dict[str, ArraySpec]:
    """The shape of one row of each output."""
    return {name: ArraySpec(tuple(values.shape[1:])) for name, values in rows.items()}


def real_mean(state: Tensor, mask: Tensor) -> Tensor:
    """Mean over the tokens where `mask` (rows, tokens) is true; what stands elsewhere is not even touched."""
    kept = state.masked_fill(~mask[..., None], 0.0)
    return kept.sum(1) / mask.sum(1, keepdim=True)
