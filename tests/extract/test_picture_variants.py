"""Pairs of files that look the same: every mode, depth and kind of transparency gives the same pixels."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageFile

from vlpipe.extract.pictures import PictureError, _to_rgb, decode

DEEP = [0, 257, 128 * 257, 65535]  # in 8 bits 0, 1, 128, 255


def png(width: int, depth: int, kind: int, rows: list[bytes], **chunks: bytes) -> bytes:
    """Written byte by byte: Pillow itself cannot save all of these."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, len(rows), depth, kind, 0, 0, 0)
    more = b"".join(chunk(name.encode(), data) for name, data in chunks.items())
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + more + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def deep(*channels: list[int]) -> bytes:
    return b"".join(struct.pack(f">{len(values)}H", *values) for values in zip(*channels, strict=True))


def first_row(data: bytes) -> list[list[int]]:
    found: list[list[int]] = np.asarray(decode(data))[0].tolist()
    return found


def greys(*values: int) -> list[list[int]]:
    return [[value] * 3 for value in values]


@pytest.mark.parametrize(
    ("kind", "channels", "chunks", "expected"),
    [
        (0, [DEEP], {}, [0, 1, 128, 255]),
        (0, [DEEP], {"tRNS": deep([257])}, [0, 255, 128, 255]),
        (2, [DEEP] * 3, {}, [0, 1, 128, 255]),
        (2, [DEEP] * 3, {"tRNS": deep([257], [257], [257])}, [0, 255, 128, 255]),
        (4, [DEEP, [65535, 0, 65535, 65535]], {}, [0, 255, 128, 255]),
        (6, [*[DEEP] * 3, [65535, 0, 65535, 65535]], {}, [0, 255, 128, 255]),
    ],
    ids=["grey", "grey-clear", "rgb", "rgb-clear", "grey-alpha", "rgb-alpha"],
)
def test_sixteen_bits(kind: int, channels: list[list[int]], chunks: dict[str, bytes], expected: list[int]) -> None:
    assert first_row(png(4, 16, kind, [deep(*channels)], **chunks)) == greys(*expected)


@pytest.mark.parametrize(
    ("depth", "row", "expected"),
    [(1, b"\x50", [0, 255, 0, 255]), (2, b"\x1b", [0, 85, 170, 255]), (4, b"\x0f\xf5", [0, 255, 255, 85])],
)
def test_few_bits_of_grey(depth: int, row: bytes, expected: list[int]) -> None:
    assert first_row(png(4, depth, 0, [row])) == greys(*expected)
    clear = png(4, depth, 0, [row], tRNS=b"\0\0")  # black is clear, so white
    assert first_row(clear) == greys(*(value or 255 for value in expected))


def test_a_palette_with_alpha() -> None:
    colours = bytes(value for value in (10, 20, 30, 40) for _ in range(3))
    data = png(4, 8, 3, [b"\0\1\2\3"], PLTE=colours, tRNS=bytes([255, 0, 128]))
    assert first_row(data) == greys(10, 255, 142, 40)  # 30 x 128 / 255 + 255 x 127 / 255 = 142


def test_every_mode_of_pillow_is_taken(draw: Callable[..., Image.Image]) -> None:
    """As Pillow's own RGB, but for those without one, which are worked out above; grey ones stay grey."""
    picture = draw(1, (9, 7))
    made: dict[str, Image.Image] = {}
    for mode in Image.MODES:
        if mode.startswith("I"):
            made[mode] = Image.new(mode, (9, 7), 128 * 257)
        elif mode in ("La", "LA", "PA"):
            made[mode] = picture.convert("L").convert("LA").convert(mode)
        elif mode == "RGBa":
            made[mode] = picture.convert("RGBA").convert(mode)
        else:
            made[mode] = picture.convert(mode)
    for mode, image in made.items():
        found = _to_rgb(image)
        assert (found.mode, found.size) == ("RGB", (9, 7)), mode
        pixels = np.asarray(found)
        if mode.startswith("I"):
            assert (pixels == 128).all()
        elif mode in ("RGB", "RGBA", "RGBa", "RGBX", "CMYK"):
            np.testing.assert_array_equal(pixels, np.asarray(picture))
        elif mode in ("L", "LA", "La", "F"):
            np.testing.assert_allclose(pixels, np.asarray(picture.convert("L").convert("RGB")), atol=1)
        elif mode in ("YCbCr", "HSV", "LAB"):
            assert np.abs(pixels.astype(int) - np.asarray(picture)).mean() < 4


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_jpeg_is_its_own_pixels_turned(orientation: int, draw: Callable[..., Image.Image]) -> None:
    """Against the definition: which side of what is seen the stored first row and first column are."""
    stored, exif = BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    draw(4, (24, 16)).save(stored, "JPEG", exif=exif)
    plain = BytesIO()
    draw(4, (24, 16)).save(plain, "JPEG")
    a = np.asarray(decode(plain.getvalue()))
    t = a.transpose(1, 0, 2)
    seen = [a, a[:, ::-1], a[::-1, ::-1], a[::-1], t, t[:, ::-1], t[::-1, ::-1], t[::-1]][orientation - 1]
    np.testing.assert_array_equal(np.asarray(decode(stored.getvalue())), seen)


def test_a_cut_picture_is_refused_though_pillow_was_told_to_fill_up(
    draw: Callable[..., Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = BytesIO()
    draw(0, (64, 64)).save(data, "JPEG")
    with pytest.raises(PictureError):
        decode(data.getvalue()[:600])
