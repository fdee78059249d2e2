"""What an encoder is: a frozen model that turns items into rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from PIL import Image
from torch import Tensor, nn

from vlpipe.cache_store.layout import ArraySpec, Side
from vlpipe.foundation.config import Config
from vlpipe.foundation.shelf import Shelf

SHELF = Shelf("vlpipe.extract.encoders", "encoder")


@dataclass(frozen=True)
class ImageItem:
    """A decoded picture: RGB, upright, at its full size."""

    id: str
    picture: Image.Image


@dataclass(frozen=True)
class TextItem:
    """A text to the letter."""

    id: str
    text: str


Item = ImageItem | TextItem


@dataclass(frozen=True)
class Prepared:
    """Tensors that `encode` takes: of one item, or of a batch with the rows first.

    `cut` has one entry a row: whether the text was longer than the model can see.
    """

    tensors: Mapping[str, Tensor]
    cut: tuple[bool, ...] = (False,)


class Encoder(Protocol):
    """A frozen model, in evaluation mode. Its file on the shelf names it: SHELF[:MODEL[@CHECKPOINT]].

    The constructor takes the part of the spec after the shelf's name ("" when there is none) and a `Config`.
    """

    Config: ClassVar[type[Config]]
    constants: Mapping[str, float]  # logit scale and bias, where the model has them

    def __init__(self, model: str, config: Any) -> None: ...

    def sides(self) -> tuple[Side, ...]:
        """Which sides the model encodes."""
        ...

    def identity(self, side: Side) -> Mapping[str, str]:
        """All that decides a row's value besides the item and the output: weights, preprocessing, precision.

        Field names are 'weights', 'preprocessing', 'tokenizer', 'precision', 'kernels', 'code' and what the
        family adds; never a path, a batch size or a machine.
        """
        ...

    def outputs(self, side: Side) -> Mapping[str, ArraySpec]:
        """Every output that the model can give, by name ("pooled", "tokens"), with the shape of a row."""
        ...

    def prepare(self, item: Item) -> Prepared:
        """One item's tensors, without a batch axis; runs on the CPU in a worker."""
        ...

    def collate(self, items: list[Prepared]) -> Prepared:
        """A batch, rows in the order given; pads texts."""
        ...

    def encode(self, batch: Prepared, outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """The asked outputs, (rows, *shape) each, without gradients."""
        ...

    def tower(self, side: Side, output: str | None = None) -> nn.Module:
        """The module that backbones/ trains: prepared tensors in, an output (rows, d) out, else the main one."""
        ...


@runtime_checkable
class Savable(Protocol):
    """An encoder that can be kept as it is after training, in its own library's format."""

    def save(self, folder: Path, logit_scale: float | None = None) -> None:
        """Write the whole model into an empty folder, with another logit scale where one is given."""
        ...

    def saved(self, folder: Path) -> tuple[str, dict[str, Any]]:
        """What loads a folder that `save` wrote: MODEL of the spec, and the settings that go with it."""
        ...


@dataclass(frozen=True)
class Spec:
    """`SHELF[:MODEL[@CHECKPOINT]]`, taken apart at the first colon; the family reads the rest itself."""

    family: str
    model: str

    @classmethod
    def parse(cls, text: str) -> Spec:
        """`hf:facebook/dinov2-small` -> family `hf`, model `facebook/dinov2-small`."""
        family, _, model = text.partition(":")
        return cls(family, model)
