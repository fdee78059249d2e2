"""What a training objective is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from vlpipe.foundation.config import Config
from vlpipe.foundation.shelf import Shelf

SHELF = Shelf("vlpipe.backbones.objectives", "objective")


class Objective(Protocol):
    """Also an `nn.Module`: its parameters (a logit scale, say) are trained with the towers."""

    Config: ClassVar[type[Config]]

    def __init__(self, config: Any) -> None: ...

    def loss(self, images: Tensor, texts: Tensor, columns: Mapping[str, Sequence[Any]]) -> dict[str, Tensor]:
        """Scalars by name, 'loss' the one to minimise; images (B, d), texts (B, K, d), raw embeddings."""
        ...


@runtime_checkable
class Stepped(Protocol):
    """An objective that has something to do after every step, for example to bound a scale."""

    def after_step(self) -> None:
        """Called after each optimizer step."""
        ...
