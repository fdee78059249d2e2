"""Pictures that a data set writes into the manifest's own folder, where its publisher has no picture files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt
from PIL import Image


def save_png(path: Path, pixels: npt.NDArray[Any] | Image.Image) -> None:
    """Write one picture: (height, width, 3) or (height, width) bytes, or a Pillow image. PNG loses nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    picture.save(path, compress_level=1)
