"""Caltech-101: pictures of 101 kinds of objects, about 40 to 800 of each.

Fei-Fei, Fergus and Perona, "Learning Generative Visual Models from Few Training Examples", CVPR workshops 2004.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from vlpipe.manifests.classes import ClassConfig, Classes
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.datasets.image_folder import class_rows
from vlpipe.manifests.folders import subfolders
from vlpipe.manifests.layouts import Layout
from vlpipe.manifests.prompts import readable

HOME = "101_ObjectCategories"
BACKGROUND = "BACKGROUND_Google"
LAYOUT = Layout(
    "Caltech-101",
    f"{HOME}/CLASS/image_0001.jpg (unpack {HOME}.tar.gz, which lies in caltech-101.zip)",
    "https://data.caltech.edu/records/mzrjq-6wc02",
)


class Caltech101Config(ClassConfig):
    """What belongs to it."""

    background: bool = False  # the clutter class BACKGROUND_Google (467 pictures), which is no kind of object


class Caltech101:
    """`101_ObjectCategories/CLASS/image_*.jpg`: 8,677 pictures of 101 classes, 9,144 with the clutter class.

    There is no published split (a run's split rule draws one); ids are `CLASS/FILE`.
    """

    Config = Caltech101Config
    source: ClassVar[str] = LAYOUT.source
    licence: ClassVar[str] = "CC BY 4.0"

    def __init__(self, config: Caltech101Config, root: Path | None, folder: Path) -> None:
        self.root = LAYOUT.need(LAYOUT.root(root), HOME, f"caltech-101/{HOME}", f"caltech101/{HOME}")
        labels = [name for name in subfolders(self.root) if config.background or name != BACKGROUND]
        if not labels:
            raise LAYOUT.refuse(f"'{self.root}' holds no folders of classes")
        self.classes = Classes.configured(config, {label: readable(label) for label in labels})

    def image_root(self) -> Path:
        """The folder of the classes."""
        return self.root

    def images(self) -> Iterator[Row]:
        """One row a picture, class by class."""
        for label in self.classes.names:
            yield from class_rows(self.classes, self.root, label, label, None)

    def texts(self) -> Iterator[Row]:
        """The classes' prompts."""
        return self.classes.prompts()
