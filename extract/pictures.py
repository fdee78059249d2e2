"""Pictures from files: whatever looks the same gives the same RGB pixels, or a named refusal.

- The EXIF orientation is applied; an invalid one counts as upright.
- Transparency is laid on white (`BACKGROUND`).
- 16-bit grey is scaled to 8 bits: 65535 becomes 255, rounded. Mode I is read as 16 bits, mode F as 0..255.
- Of an animation the first frame is taken.
- Colour profiles are ignored; CMYK is converted by Pillow's formula, in which no ink is white.
"""

from __future__ import annotations

import hashlib
import warnings
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, UnidentifiedImageError

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.shards import file_bytes

CODE = 2  # version: raised when the same file would give other pixels
BACKGROUND = (255, 255, 255)
MAX_PIXELS = 89_478_485  # Pillow's own limit, 1/4 GiB of RGB; kept on here even where something has lifted it
MAX_ASPECT = 200  # longer pictures would be blown up to hundreds of megabytes by a resize of the short edge

_ORIENTATION = 0x0112
_TURN = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_DEEP_GREY = ("I", "I;16", "I;16L", "I;16B", "I;16N")

# Filters for the process: `catch_warnings` is not safe in threads, and pictures are decoded in threads.
warnings.simplefilter("error", Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", "Corrupt EXIF data", UserWarning)  # such a picture counts as upright


class PictureError(VlpipeError):
    """A file that is not a picture that can be used; one row's failure."""


def content_hash(data: bytes) -> bytes:
    """The first 16 bytes of the SHA-256 of a file's bytes, or of a text's UTF-8."""
    return hashlib.sha256(data).digest()[:16]


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, or of a member of a shard; raises `PictureError` in one line."""
    try:
        return file_bytes(path)
    except FileNotFoundError:
        raise PictureError("the file does not exist") from None
    except IsADirectoryError:
        raise PictureError("it is a directory, not a file") from None
    except OSError as error:
        raise PictureError(f"the file cannot be read: {error.strerror or error}") from None
    except VlpipeError as error:
        raise PictureError(str(error)) from None


def decode(source: bytes | Path) -> Image.Image:
    """One picture, RGB, upright, at its full size.

    Raises `PictureError` for what is not a whole picture, for more than `MAX_PIXELS` pixels, for sides over
    `MAX_ASPECT` to 1, and for values whose range is unclear (modes I and F).
    """
    ImageFile.LOAD_TRUNCATED_IMAGES = False  # where something has asked Pillow to fill up what is missing
    data = source if isinstance(source, bytes) else read_bytes(source)
    if not data:
        raise PictureError("the file is empty (0 bytes)")
    try:
        with Image.open(BytesIO(data)) as image:
            _check_size(image)
            image.load()
            return _to_rgb(_upright(image))
    except PictureError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise PictureError(f"more than {MAX_PIXELS:,} pixels: refused as a decompression bomb") from None
    except UnidentifiedImageError:
        raise PictureError(f"not a picture: it begins with {data[:16]!r}") from None
    except Exception as error:  # decoders raise whatever a broken file makes them trip over
        raise PictureError(f"a broken picture: {type(error).__name__}: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _check_size(image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise PictureError(f"{width} x {height} pixels: refused as a decompression bomb (limit {MAX_PIXELS:,})")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise PictureError(f"{width} x {height} pixels: sides over {MAX_ASPECT} to 1 are refused")


def _upright(image: Image.Image) -> Image.Image:
    try:
        turn = _TURN.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # broken EXIF does not make a picture unusable
        turn = None
    return image if turn is None else image.transpose(turn)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in _DEEP_GREY:
        values = np.asarray(image, np.int64)
        grey = _reduced(values, 65535, image.mode)
        if isinstance(clear := image.info.get("transparency"), int):  # the one grey that is
            grey[values == clear] = BACKGROUND[0]
        return _grey(grey)
    if image.mode == "F":
        return _grey(_reduced(np.asarray(image, np.float64), 255, "F"))
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        rgba = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, (*BACKGROUND, 255)), rgba).convert("RGB")
    return image.convert("RGB")


def _reduced(
    values: npt.NDArray[np.int64] | npt.NDArray[np.float64], top: int, mode: str
) -> npt.NDArray[np.uint8]:
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= top):  # also true for NaN
        raise PictureError(f"mode {mode} with values {low}..{high}: expected 0..{top}; save it with 8 bits")
    if mode == "F" and 0 < high <= 1:
        raise PictureError(f"mode F with values {low}..{high}: 0..1 or 0..255? save it with 8 bits")
    return np.asarray(np.floor(values * (255 / top) + 0.5), np.uint8)


def _grey(values: npt.NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(values).convert("RGB")
