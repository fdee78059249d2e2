"""An encoder without weights, for tests of the run around it: what it gives can be worked out on paper."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vlpipe.cache_store.layout import ArraySpec, Side
from vlpipe.extract.contracts import ImageItem, Item, Prepared
from vlpipe.foundation.config import Config
from vlpipe.foundation.errors import VlpipeError


class ToyConfig(Config):
    scale: float = 1.0
    seconds: float = 0.0  # per batch
    interrupt_after: int = -1  # batches
    log: str = ""  # file that gets one line per batch with the number of rows


class Toy:
    """Image: `pooled` is the mean colour of three channels, `tokens` the 2 x 2 corners. Text: character counts."""

    Config: ClassVar[type[Config]] = ToyConfig
    constants: Mapping[str, float] = {"logit_scale": 10.0}

    def __init__(self, model: str, config: ToyConfig) -> None:
        self.model, self.config = model, config
        self.batches: list[int] = []

    def sides(self) -> tuple[Side, ...]:
        return ("image", "text")

    def identity(self, side: Side) -> Mapping[str, str]:
        return {"weights": self.model, "precision": str(self.config.scale), "code": "toy 1"}

    def outputs(self, side: Side) -> Mapping[str, ArraySpec]:
        pooled = {"pooled": ArraySpec((3,))}
        return pooled | {"tokens": ArraySpec((4, 3))} if side == "image" else pooled

    def prepare(self, item: Item) -> Prepared:
        if isinstance(item, ImageItem):
            return Prepared({"x": torch.from_numpy(np.array(item.picture.resize((2, 2), 0))).float()})
        if "bad" in item.text:
            raise VlpipeError(f"'{item.text}' is bad")
        return Prepared({"ids": torch.tensor(list(item.text.encode()))[:20]}, (len(item.text.encode()) > 20,))

    def collate(self, items: list[Prepared]) -> Prepared:
        cut = tuple(flag for item in items for flag in item.cut)
        if "x" in items[0].tensors:
            return Prepared({"x": torch.stack([item.tensors["x"] for item in items])}, cut)
        rows = [item.tensors["ids"] for item in items]
        return Prepared({"ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)}, cut)

    def encode(self, batch: Prepared, outputs: tuple[str, ...]) -> dict[str, Tensor]:
        if len(self.batches) == self.config.interrupt_after:
            raise KeyboardInterrupt
        self._note(len(batch.cut))
        rows: dict[str, Any]
        if "x" in batch.tensors:
            x = batch.tensors["x"]
            rows = {"pooled": x.mean((1, 2)), "tokens": x.flatten(1, 2)}
        else:
            ids = batch.tensors["ids"]
            rows = {"pooled": torch.stack([(ids == ord(c)).sum(1) for c in "abc"], 1).float()}
        return {name: rows[name] * self.config.scale for name in outputs}

    def _note(self, rows: int) -> None:
        self.batches.append(rows)
        time.sleep(self.config.seconds)
        if self.config.log:
            with Path(self.config.log).open("a") as file:
                file.write(f"{rows}\n")


class TextOnly(Toy):
    """Reads no images."""

    def sides(self) -> tuple[Side, ...]:
        return ("text",)


class PooledOnly(Toy):
    """Gives one output."""

    def outputs(self, side: Side) -> Mapping[str, ArraySpec]:
        return {"pooled": ArraySpec((3,))}
