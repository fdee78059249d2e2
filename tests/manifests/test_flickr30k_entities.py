"""Flickr30k Entities, and boxes in photos that are stored lying."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.check import check
from vlpipe.manifests.entities import parse_sentence
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.upright import picture_frame, upright_boxes

PUBLISHED = r"expected .*published at https://"
SENTENCES = (
    "[/EN#1/people Two young guys] with [/EN#2/bodyparts shaggy hair] look at [/EN#3/bodyparts/other their hands] "
    "in [/EN#8/scene the yard] .\n"
    "[/EN#6/people A man] enjoys [/EN#0/notvisual his time] , here .\n"
)
OBJECTS: Sequence[tuple[tuple[str, ...], tuple[int, int, int, int] | None]] = (
    (("1",), (11, 21, 20, 40)),
    (("1", "6"), (1, 1, 30, 60)),
    (("2",), None),
    (("3",), (5, 6, 5, 6)),
)


def picture(path: Path, size: tuple[int, int], orientation: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    Image.new("RGB", size, "grey").save(path, exif=exif)


def annotation(size: tuple[int, int]) -> str:
    parts = [f"<annotation><filename>x</filename><size><width>{size[0]}</width><height>{size[1]}</height></size>"]
    for names, box in OBJECTS:
        sides = zip(("xmin", "ymin", "xmax", "ymax"), box or (), strict=False)
        inside = "".join(f"<{side}>{value}</{side}>" for side, value in sides)
        place = f"<bndbox>{inside}</bndbox>" if box else "<scene>0</scene><nobndbox>1</nobndbox>"
        parts.append(f"<object>{''.join(f'<name>{name}</name>' for name in names)}{place}</object>")
    return "\n\t".join([*parts, "</annotation>\n"])


def entities(root: Path) -> Path:
    """Photo 12 lies and was drawn upright, 34 was drawn as it is stored."""
    for folder in ("Sentences", "Annotations"):
        (root / folder).mkdir(parents=True)
    for number, split in (("12", "train"), ("34", "val"), ("7", "test")):
        (root / "Sentences" / f"{number}.txt").write_text(SENTENCES)
        (root / f"{split}.txt").write_text(f"{number}\n")
    picture(root / "flickr30k-images" / "12.jpg", (60, 30), 6)
    (root / "Annotations" / "12.xml").write_text(annotation((30, 60)))
    picture(root / "flickr30k-images" / "34.jpg", (30, 60), 6)
    (root / "Annotations" / "34.xml").write_text(annotation((30, 60)))
    picture(root / "flickr30k-images" / "7.jpg", (30, 60))
    (root / "Annotations" / "7.xml").write_text(annotation((30, 60)))
    (root / "UNRELATED_CAPTIONS").write_text("# format: <imageID> <sentence number>\n34 2\n")
    return root


def made(root: Path, out: Path) -> Manifest:
    manifest = build("flickr30k_entities", root, out)
    manifest.verify()
    assert check(manifest, every_image=True).errors == []
    return manifest


def test_entities(tmp_path: Path) -> None:
    manifest = made(entities(tmp_path / "set"), tmp_path / "m")
    assert manifest.description.splits["images"] == {"test": 1, "train": 1, "val": 1}
    texts = {row["text_id"]: row for row in manifest.table("text").to_pylist()}
    assert len(texts) == 3 * (2 + 6)
    assert texts["7.jpg#0"]["text"] == "Two young guys with shaggy hair look at their hands in the yard ."
    assert texts["34.jpg#1"]["attributes"] == [("unrelated", "yes")]
    assert texts["7.jpg#1"]["attributes"] == []
    phrase = texts["7.jpg#0/2"]
    assert (phrase["text"], phrase["role"], phrase["source_text_id"]) == ("their hands", "phrase", "7.jpg#0")
    assert dict(phrase["attributes"]) == {"chain": "3", "types": "bodyparts/other", "first_word": "8"}
    regions = {row["region_id"]: row for row in manifest.table("region").to_pylist()}
    assert [name for name in regions if name.startswith("7.")] == ["7.jpg#0/0", "7.jpg#0/2", "7.jpg#1/0"]
    assert regions["7.jpg#0/0"]["boxes"] == [[10, 20, 20, 40], [0, 0, 30, 60]]
    assert regions["7.jpg#0/2"]["boxes"] == [[4, 5, 5, 6]]  # one pixel
    assert regions["7.jpg#1/0"]["boxes"] == [[0, 0, 30, 60]]  # an object that shows two chains
    assert regions["7.jpg#0/0"]["label"] == "people"
    assert regions["12.jpg#0/0"]["boxes"] == regions["7.jpg#0/0"]["boxes"]
    # stored 30 x 60, shown turned by a quarter to the right: 60 x 30
    assert regions["34.jpg#0/0"]["boxes"] == [[20, 10, 40, 20], [0, 0, 60, 30]]


def test_entities_in_wrong_forms(tmp_path: Path) -> None:
    root = entities(tmp_path / "set")
    sentences, boxes = root / "Sentences" / "7.txt", root / "Annotations" / "7.xml"
    for path, text, message in [
        (sentences, "[/EN#1/people Two guys run .\n", r"7\.txt' line 1: a mark is not"),
        (boxes, "<annotation/>", r"7\.xml' has no size"),
        (boxes, annotation((30, 60)).replace("xmin", "x_min"), r"7\.xml' has no size, name or xmin/ymin"),
        (boxes, "<annotation>", r"7\.xml' has no size"),
    ]:
        good = path.read_text()
        path.write_text(text)
        with pytest.raises(VlpipeError, match=f"{message}.*{PUBLISHED}"):
            build("flickr30k_entities", root, tmp_path / "m")
        path.write_text(good)
    boxes.write_text(annotation((300, 600)))
    with pytest.raises(VlpipeError, match=r"'7\.jpg' is 30 x 60 pixels, its boxes are drawn on 300 x 600"):
        build("flickr30k_entities", root, tmp_path / "m")
    (root / "Annotations").rename(tmp_path / "gone")
    with pytest.raises(VlpipeError, match=f"has no Annotations; {PUBLISHED}"):
        build("flickr30k_entities", root, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_sentences_by_hand() -> None:
    found = parse_sentence("The [/EN#4/other/vehicles red , old car] .")
    assert found.text == "The red , old car ."
    assert (found.phrases[0].text, found.phrases[0].types, found.phrases[0].first_word) == (
        "red , old car",
        ["other", "vehicles"],
        1,
    )
    assert parse_sentence("No [marks] here").text == "No [marks] here"


@pytest.mark.parametrize("orientation", [None, 1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_turned_boxes_against_pillow(tmp_path: Path, orientation: int | None) -> None:
    """A white box on black, stored, and where it is once Pillow has turned the picture."""
    pixels = np.zeros((12, 20), np.uint8)
    x0, y0, x1, y1 = 3, 2, 9, 4
    pixels[y0:y1, x0:x1] = 255
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    with Image.open(tmp_path / "a.png") as stored:
        turned = np.asarray(ImageOps.exif_transpose(stored))
    rows, columns = np.flatnonzero(turned.any(axis=1)), np.flatnonzero(turned.any(axis=0))
    expected = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    frame = picture_frame(tmp_path / "a.png")
    assert frame.upright == turned.shape[::-1]
    assert upright_boxes([(x0, y0, x1, y1)], (20, 12), frame, "a") == [expected]
    if frame.upright != (20, 12):
        assert upright_boxes([expected], (12, 20), frame, "a") == [expected]
