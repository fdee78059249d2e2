from __future__ import annotations

import hashlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin

from vlpipe.extract import pictures
from vlpipe.extract.pictures import PictureError, content_hash, decode


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(data: bytes) -> np.ndarray:
    found = decode(data)
    assert found.mode == "RGB"
    return np.asarray(found)


@pytest.fixture
def colour(draw: Callable[..., Image.Image]) -> Image.Image:
    return draw(3, (20, 14))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_gives_the_upright_picture(kind: str, orientation: int, colour: Image.Image) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    # What a camera would have stored: the stored picture, turned by Pillow's own rule, is upright.
    probe = Image.open(BytesIO(saved(colour, "PNG", exif=exif)))
    expected = np.asarray(ImageOps.exif_transpose(probe))
    lossless = {"lossless": True} if kind == "WEBP" else {}
    assert np.array_equal(pixels(saved(colour, kind, exif=exif, **lossless)), expected)
    assert expected.shape == ((14, 20, 3) if orientation < 5 else (20, 14, 3))


def test_orientation_six_on_paper() -> None:
    """6: the stored top row is the right side, so a red pixel in the left corner moves to the top right."""
    stored = Image.new("RGB", (3, 2))
    stored.putpixel((0, 0), (255, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6
    found = pixels(saved(stored, exif=exif))
    assert found.shape == (3, 2, 3)
    assert found[0, 1].tolist() == [255, 0, 0]


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_an_invalid_orientation_counts_as_upright(orientation: int, colour: Image.Image) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert np.array_equal(pixels(saved(colour, exif=exif)), np.asarray(colour))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_exif_counts_as_upright(colour: Image.Image) -> None:
    data = saved(colour, "JPEG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff")
    assert pixels(data).shape == (14, 20, 3)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA"])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_modes_give_the_pixels_of_the_rgb_copy(mode: str, kind: str, colour: Image.Image) -> None:
    image = colour.convert("L").convert("LA") if mode == "LA" else colour.convert(mode)
    assert np.array_equal(pixels(saved(image, kind)), np.asarray(image.convert("RGB")))


def test_palette_with_alpha_and_ycbcr(colour: Image.Image) -> None:
    palette = colour.convert("P").convert("PA")
    assert np.array_equal(np.asarray(pictures._to_rgb(palette)), np.asarray(palette.convert("RGB")))
    ycbcr = colour.convert("YCbCr")
    assert np.array_equal(pixels(saved(ycbcr, "TIFF")), np.asarray(ycbcr.convert("RGB")))


def test_transparency_lies_on_white() -> None:
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    half = Image.new("RGBA", (4, 4), (0, 0, 0, 127))
    assert (pixels(saved(clear)) == 255).all()
    assert (pixels(saved(half)) == 128).all()
    assert (pixels(saved(Image.new("LA", (4, 4), (0, 0)))) == 255).all()


@pytest.mark.parametrize("mode", ["P", "L", "RGB", "1"])
def test_a_transparent_colour_lies_on_white(mode: str) -> None:
    image = Image.new(mode, (4, 4), 0)
    data = saved(image, transparency=(0, 0, 0) if mode == "RGB" else 0)
    assert (pixels(data) == 255).all()


def test_palette_with_graded_transparency() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.putpixel((1, 0), 1)
    assert pixels(saved(image, transparency=bytes([0, 255]))).tolist() == [[[255] * 3, [10, 20, 30]]]


def test_cmyk_is_close_and_white_stays_white(colour: Image.Image) -> None:
    cmyk = colour.convert("CMYK")
    assert b"Adobe" in saved(cmyk, "JPEG")  # whose convention is inverted
    assert np.abs(pixels(saved(cmyk, "JPEG", quality=100)).astype(int) - np.asarray(colour)).mean() < 4
    assert np.array_equal(pixels(saved(cmyk, "TIFF")), np.asarray(cmyk.convert("RGB")))
    white = Image.new("RGB", (16, 16), "white").convert("CMYK")
    assert (pixels(saved(white, "JPEG")) == 255).all()


def test_sixteen_bit_grey_is_scaled() -> None:
    values = np.array([[0, 257, 128 * 257, 65535]], np.uint16)
    for kind in ("PNG", "TIFF"):
        assert pixels(saved(Image.fromarray(values), kind))[0, :, 0].tolist() == [0, 1, 128, 255]
    integers = Image.fromarray(values.astype(np.int32))
    assert integers.mode == "I"
    assert pixels(saved(integers, "TIFF"))[0, :, 1].tolist() == [0, 1, 128, 255]


@pytest.mark.parametrize("wrong", [-1, 65536])
def test_integers_beyond_sixteen_bits_are_refused_by_name(wrong: int) -> None:
    with pytest.raises(PictureError, match=r"mode I .*expected 0\.\.65535"):
        decode(saved(Image.fromarray(np.array([[wrong, 5]], np.int32)), "TIFF"))


def test_floats_are_read_as_0_to_255() -> None:
    assert pixels(saved(Image.fromarray(np.array([[0, 7.4, 255]], np.float32)), "TIFF"))[0, :, 0].tolist() == [
        0,
        7,
        255,
    ]


@pytest.mark.parametrize("values", [[0, 1.0], [-1, 5], [0, 256], [0, np.nan]])
def test_floats_of_unclear_range_are_refused_by_name(values: list[float]) -> None:
    with pytest.raises(PictureError, match="mode F"):
        decode(saved(Image.fromarray(np.array([values], np.float32)), "TIFF"))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert Image.open(BytesIO(data)).n_frames == 3
    assert (pixels(data) == (255, 0, 0)).all()


@pytest.mark.parametrize(
    ("data", "says"),
    [(b"", "0 bytes"), (b"<!DOCTYPE html><html></html>", "not a picture"), (b"\x89PNG\r\n\x1a\n", "picture")],
)
def test_what_is_no_picture(data: bytes, says: str) -> None:
    with pytest.raises(PictureError, match=says) as caught:
        decode(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_truncated_picture_is_refused(kind: str, share: float, draw: Callable[..., Image.Image]) -> None:
    data = saved(draw(0, (64, 64)), kind)
    with pytest.raises(PictureError):
        decode(data[: int(len(data) * share)])


def test_files_and_directories(tmp_path: Path, colour: Image.Image) -> None:
    (tmp_path / "a.png").write_bytes(saved(colour))
    assert np.array_equal(np.asarray(decode(tmp_path / "a.png")), np.asarray(colour))
    with pytest.raises(PictureError, match="directory"):
        decode(tmp_path)
    with pytest.raises(PictureError, match="does not exist"):
        decode(tmp_path / "gone.png")


def test_a_decompression_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(Image.new("1", (10_000, 10_000)))  # over the limit, under Pillow's error
    assert len(data) < 50_000
    with pytest.raises(PictureError, match="bomb"):
        decode(data)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as some libraries do
    with pytest.raises(PictureError, match="bomb"):
        decode(data)
    with pytest.raises(PictureError, match="bomb"):
        decode(saved(Image.new("1", (20_000, 20_000))))


def test_a_bomb_in_a_text_chunk_is_refused() -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("a", "x" * (PngImagePlugin.MAX_TEXT_CHUNK + 1), zip=True)
    with pytest.raises(PictureError):
        decode(saved(Image.new("L", (2, 2)), pnginfo=info))


def test_extreme_sides() -> None:
    assert decode(saved(Image.new("L", (200, 1)))).size == (200, 1)
    with pytest.raises(PictureError, match="200 to 1"):
        decode(saved(Image.new("L", (201, 1))))


def test_content_hash_is_the_beginning_of_sha256() -> None:
    assert content_hash(b"abc") == hashlib.sha256(b"abc").digest()[:16]
    assert content_hash("é".encode()) != content_hash("é".encode("latin-1"))
