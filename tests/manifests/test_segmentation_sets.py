"""VOC20 and ADE20K-150 on miniatures: masks by class to the pixel, splits, and what is refused."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.check import check
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.regions import mask_pixels
from vlpipe.manifests.writer import write_manifest

MAP = np.array([[0, 0, 15], [15, 255, 15]], np.uint8)  # a person on background, one void pixel
TWO = np.array([[12, 12], [0, 20]], np.uint8)
INFO = "Idx\tRatio\tTrain\tVal\tName\n1\t0.1\t9\t2\twall\n2 \t0.1\t9\t2\tbuilding, edifice\n3\t0.1\t9\t2\tbed \n"


def draw(path: Path, numbers: npt.NDArray[np.uint8], palette: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(numbers)
    if palette:
        picture.putpalette([(37 * i + c) % 256 for i in range(256) for c in range(3)])  # mode P, as VOC draws
    picture.save(path)


def photo(path: Path, numbers: npt.NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", numbers.shape[::-1], "red").save(path)


def voc(root: Path, home: str = "VOCdevkit/VOC2012") -> Path:
    for name, numbers in (("2007_000032", MAP), ("2007_000033", TWO)):
        photo(root / home / f"JPEGImages/{name}.jpg", numbers)
        draw(root / home / f"SegmentationClass/{name}.png", numbers, palette=True)
    photo(root / home / "JPEGImages/2008_000001.jpg", TWO)  # of the detection lists only
    lists = root / home / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("2007_000032\n")
    (lists / "val.txt").write_text("2007_000033\n")
    (lists / "trainval.txt").write_text("2007_000032\n2007_000033\n")
    return root


def ade(root: Path, home: str = "ADEChallengeData2016") -> Path:
    for split, name, numbers in (
        ("training", "ADE_train_00000001", TWO // 12),
        ("validation", "ADE_val_00000001", MAP % 2),
    ):
        photo(root / home / f"images/{split}/{name}.jpg", numbers)
        draw(root / home / f"annotations/{split}/{name}.png", numbers, palette=False)
    (root / home / "objectInfo150.txt").write_text(INFO)
    (root / home / "sceneCategories.txt").write_text(
        "ADE_train_00000001 airport_terminal\nADE_val_00000001 bedroom\n"
    )
    return root


def regions(manifest: Manifest) -> dict[str, tuple[str, list[list[bool]]]]:
    rows = manifest.table("region").to_pylist()
    return {row["region_id"]: (row["label"], mask_pixels(row["mask"]).tolist()) for row in rows}


@pytest.mark.parametrize("home", ["VOCdevkit/VOC2012", "VOC2012", "."])
def test_voc20(tmp_path: Path, home: str) -> None:
    notes: list[str] = []
    manifest = build(
        "voc20", voc(tmp_path / "set", home), tmp_path / "m", {"templates": ["a {}"]}, note=notes.append
    )
    rows = manifest.table("image").to_pylist()
    assert [(row["image_id"], row["split"], row["label"]) for row in rows] == [
        ("2007_000032", "train", None),
        ("2007_000033", "val", None),
    ]
    assert regions(manifest) == {
        "2007_000032#15": ("person", [[False, False, True], [True, False, True]]),
        "2007_000033#12": ("dog", [[True, True], [False, False]]),
        "2007_000033#20": ("tvmonitor", [[False, False], [False, True]]),
    }
    prompts = manifest.table("text").to_pylist()
    assert len(prompts) == 20
    assert (prompts[10]["text"], dict(prompts[10]["attributes"])["label"]) == ("a dining table", "diningtable")
    assert check(manifest).errors == []
    assert notes == [
        "voc20: 1 images in split train, published are 1,464",
        "voc20: 1 images in split val, published are 1,449",
    ]


@pytest.mark.parametrize("home", ["ADEChallengeData2016", "."])
def test_ade20k(tmp_path: Path, home: str) -> None:
    root = ade(tmp_path / "set", home)
    manifest = build("ade20k_150", root, tmp_path / "m", {"templates": ["a {}"]})
    rows = manifest.table("image").to_pylist()
    assert [(row["image_id"], row["path"], row["split"], dict(row["attributes"])["scene"]) for row in rows] == [
        ("ADE_train_00000001", "images/training/ADE_train_00000001.jpg", "train", "airport_terminal"),
        ("ADE_val_00000001", "images/validation/ADE_val_00000001.jpg", "val", "bedroom"),
    ]
    assert regions(manifest) == {
        "ADE_train_00000001#1": ("wall", [[True, True], [False, True]]),
        "ADE_val_00000001#1": ("wall", [[False, False, True], [True, True, True]]),
    }
    prompts = [(row["text"], dict(row["attributes"])["label"]) for row in manifest.table("text").to_pylist()]
    assert prompts == [("a wall", "wall"), ("a building", "building, edifice"), ("a bed", "bed")]
    assert check(manifest).errors == []
    (root / home / "sceneCategories.txt").unlink()
    assert build("ade20k_150", root, tmp_path / "m2").table("image")["attributes"][0].as_py() == []


def test_wrong_voc_files(tmp_path: Path) -> None:
    expected = r"expected VOCdevkit/VOC2012/ with JPEGImages/.*published at http://host\.robots\.ox\.ac\.uk"
    with pytest.raises(VlpipeError, match=f"needs --root DIR; {expected}"):
        build("voc20", None, tmp_path / "m")
    with pytest.raises(VlpipeError, match=f"is not VOC 2012: .*{expected}"):
        build("voc20", tmp_path, tmp_path / "m")
    root = voc(tmp_path / "set", ".")
    drawn, listed = root / "SegmentationClass/2007_000033.png", root / "ImageSets/Segmentation/val.txt"
    draw(drawn, TWO + 1, palette=True)
    with pytest.raises(VlpipeError, match=r"2007_000033\.png' holds class number 21; known are 1 to 20"):
        build("voc20", root, tmp_path / "m")
    Image.new("RGB", (2, 2)).save(drawn)
    with pytest.raises(VlpipeError, match=r"has mode RGB: colours, not class numbers"):
        build("voc20", root, tmp_path / "m")
    draw(drawn, MAP, palette=True)
    with pytest.raises(VlpipeError, match=r"is 3 x 2 pixels, its picture 2 x 2"):
        build("voc20", root, tmp_path / "m")
    drawn.write_bytes(b"no png")
    with pytest.raises(VlpipeError, match=r"is no picture that can be read"):
        build("voc20", root, tmp_path / "m")
    listed.write_text("2007_000034\n")
    with pytest.raises(VlpipeError, match=r"2007_000034\.png' does not exist; a picture and its map"):
        build("voc20", root, tmp_path / "m")
    listed.unlink()
    with pytest.raises(VlpipeError, match=f"val.txt' does not exist; {expected}"):
        build("voc20", root, tmp_path / "m")
    (root / "SegmentationClass").rename(tmp_path / "gone")
    listed.write_text("2007_000033\n")
    with pytest.raises(VlpipeError, match=f"has no SegmentationClass; {expected}"):
        build("voc20", root, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_wrong_ade_files(tmp_path: Path) -> None:
    expected = r"expected ADEChallengeData2016/ with images/training/.*published at http://sceneparsing"
    with pytest.raises(VlpipeError, match=f"is not ADE20K-150: .*{expected}"):
        build("ade20k_150", tmp_path, tmp_path / "m")
    root = ade(tmp_path / "set", ".")
    for text, what in (
        (INFO.replace("Name", "Label"), "has the columns Idx, Ratio, Train, Val, Label; Idx and Name"),
        (INFO.replace("\twall", ""), "has the line '1 0.1 9 2'"),
        (INFO.replace("\n3", "\n1"), "has the line '1 0.1 9 2 bed'"),
        (INFO.splitlines()[0], "names no class"),
    ):
        (root / "objectInfo150.txt").write_text(text)
        with pytest.raises(VlpipeError, match=f"{what}.*{expected}"):
            build("ade20k_150", root, tmp_path / "m")
    (root / "objectInfo150.txt").write_text(INFO)
    (root / "annotations/validation").rename(tmp_path / "gone")
    with pytest.raises(VlpipeError, match=f"has no annotations/validation; {expected}"):
        build("ade20k_150", root, tmp_path / "m")


def test_memory_does_not_grow_with_the_masks(tmp_path: Path) -> None:
    """A mask of 1,000 runs is some 40 kB as Python numbers: those of all 1,200 regions would be over 48 MB."""
    rows = (
        {
            "region_id": str(number),
            "image_id": "i",
            "mask": {"height": 1000, "width": 1000, "counts": np.full(1000, 1000).tolist()},
        }
        for number in range(1200)
    )
    images = [{"image_id": "i", "path": "i.jpg"}]
    tracemalloc.start()
    write_manifest(
        tmp_path / "m",
        name="n",
        source="s",
        licence="l",
        image_root=tmp_path,
        images=images,
        texts=[],
        regions=rows,
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30_000_000
