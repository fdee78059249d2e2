"""Random vectors in place of a model, for tests and dry runs: `random_features`, with its sizes as settings.

A vector is a function of the seed and of the content alone, the pixels of a picture or the letters of a text:
equal content gives equal rows to the bit, any other content independent ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from vlpipe.cache_store.layout import ArraySpec, Side
from vlpipe.extract.contracts import ImageItem, Item, Prepared
from vlpipe.foundation.config import Config
from vlpipe.foundation.errors import UsageError

CODE = 1  # version: raised when the same item would give another row


class RandomFeaturesConfig(Config):
    """Sizes of the rows."""

    width: int = Field(default=512, ge=1)
    tokens: int = Field(default=16, ge=1)  # patches of a picture
    seed: int = Field(default=0, ge=0)


class RandomFeatures:
    """Standard normal rows for pictures and texts. Raises `UsageError` when a model is named."""

    Config: ClassVar[type[Config]] = RandomFeaturesConfig
    constants: Mapping[str, float] = {}

    def __init__(self, model: str, config: RandomFeaturesConfig) -> None:
        if model:
            raise UsageError(
                f"encoder 'random_features' takes no model, given '{model}'; its sizes are settings, for example "
                "--set width=64"
            )
        self.config = config

    def sides(self) -> tuple[Side, ...]:
        """Both."""
        return ("image", "text")

    def identity(self, side: Side) -> Mapping[str, str]:
        """The seed stands for the weights."""
        return {
            "weights": f"random, seed {self.config.seed}",
            "preprocessing": "pixels in RGB at full size" if side == "image" else "the text in UTF-8",
            "precision": "float32",
            "kernels": "none",
            "code": f"random_features {CODE}",
        }

    def outputs(self, side: Side) -> Mapping[str, ArraySpec]:
        """`pooled` of both sides, `tokens` of images."""
        width = self.config.width
        shapes = (
            {"pooled": (width,)} if side == "text" else {"pooled": (width,), "tokens": (self.config.tokens, width)}
        )
        return {name: ArraySpec(shape) for name, shape in shapes.items()}

    def prepare(self, item: Item) -> Prepared:
        """The rows themselves, (width,) and (tokens, width)."""
        if isinstance(item, ImageItem):
            picture = item.picture
            content = f"{picture.width} {picture.height}\0".encode() + picture.tobytes()
            specs = self.outputs("image")
        else:
            content, specs = item.text.encode("utf-8"), self.outputs("text")
        kind = type(item).__name__
        return Prepared({name: self._draw(f"{kind} {name}", content, spec) for name, spec in specs.items()})

    def collate(self, items: list[Prepared]) -> Prepared:
        """Rows stacked."""
        tensors = {name: torch.stack([item.tensors[name] for item in items]) for name in items[0].tensors}
        return Prepared(tensors, tuple(flag for item in items for flag in item.cut))

    def encode(self, batch: Prepared, outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """The asked outputs."""
        return {name: batch.tensors[name] for name in outputs}

    def tower(self, side: Side, output: str | None = None) -> nn.Module:
        """A module without parameters: prepared tensors in, `pooled` out."""
        return _Tower()

    def _draw(self, name: str, content: bytes, spec: ArraySpec) -> Tensor:
        key = hashlib.sha256(f"{self.config.seed}\0{name}\0".encode() + content).digest()
        draw = np.random.default_rng(int.from_bytes(key, "little"))
        return torch.from_numpy(draw.standard_normal(spec.shape, np.float32))


class _Tower(nn.Module):
    """What `tower` gives: the rows have been drawn already."""

    def forward(self, tensors: Mapping[str, Any]) -> Any:
        """(rows, width) of prepared tensors."""
        return tensors["pooled"]
