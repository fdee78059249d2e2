"""Pictures that a data set writes into the manifest's own folder: where its publisher has no picture files, or the
benchmark shows a model a part of one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt
from PIL import Image

from vlpipe.foundation.errors import VlpipeError

CROPS = "crops-1"  # in the manifest's folder; raised when the same box would give other pixels
Box = tuple[int, int, int, int]  # x, y, width, height in stored pixels


def save_png(path: Path, pixels: npt.NDArray[Any] | Image.Image) -> None:
    """Write one picture: (height, width, 3) or (height, width) bytes, or a Pillow image. PNG loses nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    picture.save(path, compress_level=1)


def crop_path(path: str, box: Box) -> str:
    """Where the crop lies, relative to the manifest's folder. Raises `VlpipeError` for a path that leads out."""
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise VlpipeError(f"the picture's path '{path}' leads out of its folder; expected one inside")
    stem = path.rpartition(".")[0] or path
    return f"{CROPS}/{stem}-{'-'.join(str(value) for value in box)}.png"


def write_crop(source: Path, box: Box, target: Path) -> None:
    """The box of the stored pixels as a PNG, RGB; what reaches out of the picture is black, as Pillow cuts it.

    Raises `VlpipeError` for a picture that cannot be read, or a box without pixels.
    """
    x, y, width, height = box
    if width < 1 or height < 1:
        raise VlpipeError(f"'{source}': the box {box} has no pixels; expected x, y, width, height")
    try:
        with Image.open(source) as picture:
            part = picture.convert("RGB").crop((x, y, x + width, y + height))
    except Exception as error:  # decoders raise whatever a broken file makes them trip over
        raise VlpipeError(f"'{source}' cannot be cropped: {error}; unpack the photo archive again") from None
    save_png(target, part)
