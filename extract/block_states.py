"""States of a model by layer: layer 0 goes into its first block, layer k comes out of block k."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vlpipe.cache_store.layout import ArraySpec
from vlpipe.extract.output_names import layer_name


class State(Protocol):
    """What is known of every row at one layer, and the ways to read it."""

    @property
    def poolings(self) -> tuple[str, ...]:
        """Names that `pool` takes."""
        ...

    def pool(self, name: str) -> Tensor:
        """One reading, in float32."""
        ...


@dataclass(frozen=True)
class ImageState:
    """Patches (rows, patches, width), row by row of the picture; the class token (rows, width), if any."""

    patches: Tensor
    cls: Tensor | None = None

    @property
    def poolings(self) -> tuple[str, ...]:
        """`cls` where there is one, `mean` over the patches, `tokens`: the patches."""
        return (*(() if self.cls is None else ("cls",)), "mean", "tokens")

    def pool(self, name: str) -> Tensor:
        """(rows, width), or (rows, patches, width) for `tokens`; in float32."""
        if name == "cls" and self.cls is not None:
            return self.cls.float()
        return self.patches.float().mean(1) if name == "mean" else self.patches.float()


@dataclass(frozen=True)
class TextState:
    """States (rows, context, width) and how many of them are real tokens, special ones counted (rows,)."""

    states: Tensor
    lengths: Tensor
    poolings: tuple[str, ...] = ("mean", "last")

    def pool(self, name: str) -> Tensor:
        """(rows, width) in float32: the mean over real tokens, or the last one, which is the end token."""
        states = self.states.float()
        if name == "last":
            return states[torch.arange(len(states), device=states.device), self.lengths - 1]
        real = torch.arange(states.shape[1], device=states.device) < self.lengths[:, None]
        return (states * real[..., None]).sum(1) / self.lengths[:, None]


def sequence(state: Tensor, prefix: int, has_class: bool) -> ImageState:
    """A state (rows, prefix + patches, width); the class token comes first of the prefix."""
    return ImageState(state[:, prefix:], state[:, 0] if has_class and prefix else None)


def grid(state: Tensor, channels_last: bool = False) -> ImageState:
    """A map (rows, width, height, breadth), or with its width last."""
    return ImageState(state.flatten(1, 2) if channels_last else state.flatten(2).transpose(1, 2))


@contextmanager
def recorded(blocks: Sequence[nn.Module], layers: Collection[int]) -> Iterator[dict[int, Tensor]]:
    """The dictionary is filled with the asked layers' states while the model runs inside."""
    states: dict[int, Tensor] = {}

    def keep_input(_: nn.Module, given: tuple[Any, ...]) -> None:
        states[0] = given[0]

    def keep_output(layer: int, _: nn.Module, __: Any, result: Any) -> None:
        states[layer] = result[0] if isinstance(result, tuple) else result

    handles = [blocks[0].register_forward_pre_hook(keep_input)] if 0 in layers else []
    handles += [blocks[k - 1].register_forward_hook(partial(keep_output, k)) for k in layers if k]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def layer_specs(states: Mapping[int, State]) -> dict[str, ArraySpec]:
    """Outputs of every layer by name (`layer_06.mean`), with the shapes that one row has in `states`."""
    return {
        layer_name(layer, pooling): ArraySpec(tuple(state.pool(pooling).shape[1:]))
        for layer, state in sorted(states.items())
        for pooling in state.poolings
    }


def kernels(model: nn.Module) -> str:
    """Which attention timm's blocks take, as its own switch stood when they were made."""
    fused = {bool(module.fused_attn) for module in model.modules() if hasattr(module, "fused_attn")}
    return f"attention {'fused' if fused == {True} else 'plain'}" if fused else "default"
