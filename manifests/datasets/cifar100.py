"""CIFAR-100: 60,000 pictures of 32 x 32 pixels in 100 classes of 20 superclasses.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from vlpipe.manifests.cifar import Bytes, Cifar, CifarConfig
from vlpipe.manifests.contracts import Row


class Cifar100(Cifar):
    """`cifar-100-binary/`: train.bin (50,000), test.bin (10,000). The label is the fine class.

    The coarse label of each picture is its attribute `superclass`, unless a file of superclasses is given.
    """

    title: ClassVar[str] = "CIFAR-100"
    home: ClassVar[str] = "cifar-100-binary"
    files: ClassVar[Mapping[str, Sequence[str]]] = {"train": ["train.bin"], "test": ["test.bin"]}
    names_file: ClassVar[str] = "fine_label_names.txt"
    label_bytes: ClassVar[int] = 2  # coarse, fine

    def __init__(self, config: CifarConfig, root: Path | None, folder: Path) -> None:
        super().__init__(config, root, folder)
        self.coarse = self.layout.entries(self.root / "coarse_label_names.txt")

    def row(self, image_id: str, path: str, split: str, label: Bytes) -> Row:
        """One picture's row, with both labels."""
        fine = self.named(self.labels, int(label[1]))
        above = self.classes.superclasses.get(fine) or self.named(self.coarse, int(label[0]))
        return self.classes.image(image_id, path, split, fine, superclass=above)
