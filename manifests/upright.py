"""Boxes in pixels of the upright picture, whichever way a publisher drew them.

A photo may be stored lying, with an EXIF orientation that says how to turn it. Annotations were drawn on the
stored pixels or on the upright picture, and give the width and height that they mean.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from vlpipe.foundation.errors import VlpipeError

Box = Sequence[float]  # x0, y0, x1, y1
ORIENTATION = 0x0112
LYING = (5, 6, 7, 8)  # orientations that swap width and height


@dataclass(frozen=True)
class Frame:
    """A picture's stored width and height in pixels, and its EXIF orientation, 1 without a valid one."""

    width: int
    height: int
    orientation: int

    @property
    def upright(self) -> tuple[int, int]:
        """Width and height once it is turned."""
        lies = self.orientation in LYING
        return (self.height, self.width) if lies else (self.width, self.height)


def picture_frame(path: Path) -> Frame:
    """Read from the file's header, no pixels. Raises `VlpipeError` for what is no picture."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path) as picture:
                return Frame(*picture.size, _orientation(picture))
    except FileNotFoundError:
        raise VlpipeError(
            f"'{path}' does not exist; boxes are turned as the photo is, so 'absent' cannot be \"keep\" here: "
            'unpack the photo archive whole, or say "leave_out"'
        ) from None
    except Exception as error:
        raise VlpipeError(f"'{path}' is no picture whose size can be read: {error}") from None


def _orientation(picture: Image.Image) -> int:
    try:
        found = picture.getexif().get(ORIENTATION, 1)
    except Exception:  # broken EXIF does not make a picture unusable: it counts as upright, as in extraction
        return 1
    return found if found in range(1, 9) else 1


def upright_boxes(boxes: Sequence[Box], drawn: tuple[int, int], frame: Frame, name: str) -> list[list[float]]:
    """Boxes drawn on a picture of width and height `drawn`, in pixels of the upright one.

    Kept as they are where `drawn` is the upright size and only that. Where it is the stored size they are turned:
    also where both are the same (a square, or orientations 2 to 4), since the tools and browsers that the sets of
    those years were drawn with showed the stored pixels. Raises `VlpipeError` with `name` where it is neither.
    """
    if drawn == (frame.width, frame.height):
        return [_turned(box, frame) for box in boxes]
    if drawn == frame.upright:
        return [[float(x) for x in box] for box in boxes]
    raise VlpipeError(
        f"'{name}' is {frame.width} x {frame.height} pixels, its boxes are drawn on {drawn[0]} x {drawn[1]}; "
        "unpack the original photos: resized ones do not fit the boxes"
    )


def _turned(box: Box, frame: Frame) -> list[float]:
    """One box of the stored picture in the upright one."""
    x0, y0, x1, y1 = (float(x) for x in box)
    if frame.orientation in (2, 3, 7, 8):  # mirrored along the stored x, or what becomes of it
        x0, x1 = frame.width - x1, frame.width - x0
    if frame.orientation in (3, 4, 6, 7):  # and along the stored y
        y0, y1 = frame.height - y1, frame.height - y0
    return [y0, x0, y1, x1] if frame.orientation in LYING else [x0, y0, x1, y1]
