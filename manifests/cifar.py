"""CIFAR's binary version: records of label bytes and 3,072 pixel bytes, without any pickle.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.classes import ClassConfig, Classes
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.layouts import Layout
from vlpipe.manifests.pictures import save_png

SIDE = 32
PIXELS = 3 * SIDE * SIDE  # bytes of a record's picture: red, green and blue planes, row by row
DRAWING = "png-1"
Bytes = npt.NDArray[np.uint8]


class CifarConfig(ClassConfig):
    """Prompts and superclasses."""


class Cifar:
    """Pictures are written as PNG into the manifest's folder, number by number in the publisher's order.

    A subclass says the layout; `label_bytes` is the number of bytes before a picture, the last of which is the
    class.
    """

    Config = CifarConfig
    source: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/cifar.html"
    licence: ClassVar[str] = "none stated by the publisher"
    title: ClassVar[str]
    home: ClassVar[str]
    files: ClassVar[Mapping[str, Sequence[str]]]  # by split
    names_file: ClassVar[str]
    label_bytes: ClassVar[int] = 1
    counts: ClassVar[Mapping[str, int]] = {"train": 50_000, "test": 10_000}

    def __init__(self, config: CifarConfig, root: Path | None, folder: Path) -> None:
        needed = [*(name for files in self.files.values() for name in files), self.names_file]
        binary = f"{self.home}/ of the binary version (not the Python one, which is a pickle)"
        self.layout = Layout(self.title, f"{binary} with {', '.join(needed)}", self.source)
        self.folder = folder
        found = self.layout.need(self.layout.root(root), f"{self.home}/{self.names_file}", self.names_file)
        self.root = found.parent
        for name in needed[:-1]:
            self._check_file(self.root / name)
        self.labels = self.layout.entries(found)
        self.classes = Classes.configured(config, {label: label.replace("_", " ") for label in self.labels})

    def image_root(self) -> Path:
        """The manifest's own folder."""
        return self.folder

    def images(self) -> Iterator[Row]:
        """One row a picture; writes its PNG on the way. Ids are `SPLIT/NUMBER`, paths begin with the version."""
        for split in self.files:
            for number, record in enumerate(self._records(split)):
                name = f"{split}/{number:05d}"
                picture = record[self.label_bytes :].reshape(3, SIDE, SIDE).transpose(1, 2, 0)
                save_png(self.folder / DRAWING / f"{name}.png", picture)
                yield self.row(name, f"{DRAWING}/{name}.png", split, record[: self.label_bytes])

    def row(self, image_id: str, path: str, split: str, label: Bytes) -> Row:
        """One picture's row, from its label bytes."""
        return self.classes.image(image_id, path, split, self.named(self.labels, int(label[-1])))

    def texts(self) -> Iterator[Row]:
        """The classes' prompts."""
        return self.classes.prompts()

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """Pictures by split."""
        return {"images": self.counts}

    def named(self, names: Sequence[str], number: int) -> str:
        """The name of a class's number. Raises `VlpipeError` for one that is over the number of names."""
        if number >= len(names):
            raise VlpipeError(
                f"'{self.root}' has a picture of class {number}, but {len(names)} names; unpack it again"
            )
        return names[number]

    def _records(self, split: str) -> Iterator[Bytes]:
        for name in self.files[split]:
            width = self.label_bytes + PIXELS
            yield from np.fromfile(self.root / name, np.uint8).reshape(-1, width)

    def _check_file(self, path: Path) -> None:
        if not path.is_file():
            raise self.layout.refuse(f"'{path}' does not exist")
        size, width = path.stat().st_size, self.label_bytes + PIXELS
        if size % width or not size:
            raise VlpipeError(
                f"'{path}' has {size:,} bytes; expected a multiple of {width}: unpack the archive again"
            )
