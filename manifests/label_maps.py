"""Segmentation as publishers draw it: a picture whose pixels are class numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.regions import run_lengths

MODES = ("P", "L")  # the bytes of either are class numbers; of a map drawn in colours they are not


def class_regions(
    path: Path, picture: Path, image_id: str, labels: Mapping[int, str], ignored: Collection[int]
) -> Iterator[Row]:
    """One region a class of the map at `path`, its mask all the pixels of that class, by ascending number.

    Ids are `IMAGE#NUMBER`; pixels of the `ignored` numbers are in no region. Raises `VlpipeError` for a map that
    is missing or broken, has colours in place of numbers, another size than its picture, or an unknown number.
    """
    numbers = _numbers(path)
    with _opened(picture) as opened:
        if opened.size != numbers.shape[::-1]:
            raise VlpipeError(
                f"'{path}' is {numbers.shape[1]} x {numbers.shape[0]} pixels, its picture "
                f"{opened.width} x {opened.height}; unpack the archive again"
            )
    for number in np.unique(numbers).tolist():
        if number in ignored:
            continue
        if number not in labels:
            raise VlpipeError(f"'{path}' holds class number {number}; known are {min(labels)} to {max(labels)}")
        yield {
            "region_id": f"{image_id}#{number}",
            "image_id": image_id,
            "label": labels[number],
            "mask": run_lengths(numbers == number),
        }


def _numbers(path: Path) -> npt.NDArray[Any]:
    with _opened(path) as opened:
        if opened.mode not in MODES:
            raise VlpipeError(
                f"'{path}' has mode {opened.mode}: colours, not class numbers; use the publisher's own files"
            )
        return np.asarray(opened)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        with Image.open(path) as opened:
            yield opened
    except FileNotFoundError:
        raise VlpipeError(
            f"'{path}' does not exist; a picture and its map belong together: unpack the archive whole"
        ) from None
    except (OSError, SyntaxError) as error:
        raise VlpipeError(f"'{path}' is no picture that can be read ({error}); unpack the archive again") from None
