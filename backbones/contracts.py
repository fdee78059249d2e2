"""What a training objective is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from vlpipe.foundation.config import Config
from vlpipe.foundation.shelf import Shelf

SHELF = Shelf("vlpipe.backbones.objectives", "objective")


class Objective(Protocol):
    """Also an `nn.Module`: its parameters (a logit scale, say) are trained with the towers.

    One that is `Headed` is built as `(config, shapes)`, any other as `(config)`.
    """

    Config: ClassVar[type[Config]]

    def __init__(self, config: Any) -> None: ...

    def loss(self, images: Tensor, texts: Tensor, columns: Mapping[str, Sequence[Any]]) -> dict[str, Tensor]:
        """Scalars by name, 'loss' the one to minimise; images (B, d), texts (B, K, d), raw embeddings.

        `columns` has one entry a row: of images "image_id" and "label", and under "text_id" and "text" lists of K,
        those of the row's texts.
        """
        ...


@runtime_checkable
class Headed(Protocol):
    """An objective that trains a head of the heads shelf on cached images; only the text tower learns beside it.

    `head` is that head: after training it becomes a finished run on the trained tower's texts.
    """

    head: nn.Module

    @staticmethod
    def named(config: Any) -> tuple[str, dict[str, Any]]:
        """The head's name, and the settings that it is built with."""
        ...


@runtime_checkable
class Stepped(Protocol):
    """An objective that has something to do after every step, for example to bound a scale."""

    def after_step(self) -> None:
        """Called after each optimizer step."""
        ...


@runtime_checkable
class Scaled(Protocol):
    """An objective that learns a logit scale which goes with the towers."""

    log_scale: nn.Parameter
