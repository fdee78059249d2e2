"""CIFAR-10: 60,000 pictures of 32 x 32 pixels in ten classes.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from vlpipe.manifests.cifar import Cifar


class Cifar10(Cifar):
    """`cifar-10-batches-bin/`: data_batch_1.bin to 5 (50,000 for training), test_batch.bin (10,000)."""

    title: ClassVar[str] = "CIFAR-10"
    home: ClassVar[str] = "cifar-10-batches-bin"
    files: ClassVar[Mapping[str, Sequence[str]]] = {
        "train": [f"data_batch_{number}.bin" for number in range(1, 6)],
        "test": ["test_batch.bin"],
    }
    names_file: ClassVar[str] = "batches.meta.txt"
