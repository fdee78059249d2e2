"""COCO captions in Karpathy's splits and in its own, on miniatures and on real photos."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from miniature import caption, dump, touch

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.manifest import Manifest

COCO = [
    ("val2014", "COCO_val2014_000000391895.jpg", "test", [770337, 771687]),
    ("val2014", "COCO_val2014_000000060623.jpg", "restval", [2, 1]),
    ("train2014", "COCO_train2014_000000000009.jpg", "train", [30, 31, 32]),
    ("val2014", "COCO_val2014_000000000042.jpg", "val", [4]),
]


def made(name: str, root: Path, out: Path, **settings: Any) -> tuple[Manifest, list[str]]:
    notes: list[str] = []
    manifest = build(name, root, out, settings, note=notes.append)
    manifest.verify()
    return manifest, notes


def coco_karpathy(root: Path) -> Path:
    images = []
    for number, (folder, name, split, ids) in enumerate(COCO):
        sentences = [{"tokens": ["a"], "raw": caption(name, k), "imgid": number, "sentid": k} for k in ids]
        images.append(
            {
                "filepath": folder, "sentids": ids, "filename": name, "imgid": number, "split": split,
                "sentences": sentences, "cocoid": int(name[-16:-4]),
            }
        )  # fmt: skip
    return dump(root / "dataset_coco.json", {"images": images, "dataset": "coco"})


def test_coco_in_karpathys_splits(tmp_path: Path) -> None:
    root = tmp_path / "set"
    touch(root, [f"{folder}/{name}" for folder, name, *_ in COCO])
    coco_karpathy(root)
    manifest, notes = made("coco", root, tmp_path / "m")
    images = manifest.table("image").to_pylist()
    assert [row["image_id"] for row in images] == [name for _, name, *_ in COCO]
    assert [row["split"] for row in images] == ["test", "train", "train", "val"]
    assert all((manifest.image_root / row["path"]).is_file() for row in images)
    texts = manifest.table("text").to_pylist()
    assert [row["text_id"] for row in texts] == [str(k) for *_, ids in COCO for k in ids]
    assert "coco: 2 images in split train, published are 113,287" in notes
    manifest, notes = made("coco", root, tmp_path / "n", restval="restval")
    assert manifest.description.splits["images"] == {"restval": 1, "test": 1, "train": 1, "val": 1}
    assert "coco: 1 images in split restval, published are 30,504" in notes


def coco_json(names: Mapping[int, str]) -> dict[str, Any]:
    """Captions in the publisher's order, which is not by photo."""
    return {
        "info": {"year": 2017},
        "licenses": [],
        "images": [
            {"license": 3, "file_name": name, "height": 4, "width": 6, "id": number}
            for number, name in names.items()
        ],
        "annotations": [
            {"image_id": number, "id": 100 * k + number, "caption": caption(name, k)}
            for k in range(2)
            for number, name in names.items()
        ],
    }


@pytest.mark.parametrize("year", ["2014", "2017"])
def test_coco_in_its_own_splits(tmp_path: Path, year: str) -> None:
    root = tmp_path / "set"
    prefix = {"2014": "COCO_{}2014_", "2017": ""}[year]
    for split, numbers in {"train": (9, 7), "val": (5,)}.items():
        names = {number: f"{prefix.format(split)}{number:012}.jpg" for number in numbers}
        touch(root / f"{split}{year}", list(names.values()))
        dump(root / "annotations" / f"captions_{split}{year}.json", coco_json(names))
    manifest, _ = made("coco", root, tmp_path / "m")
    images = manifest.table("image").to_pylist()
    assert [int(row["image_id"][-16:-4]) for row in images] == [9, 7, 5]
    assert [row["path"].partition("/")[0] for row in images] == [f"train{year}", f"train{year}", f"val{year}"]
    assert [row["split"] for row in images] == ["train", "train", "val"]
    texts = manifest.table("text", ["text_id", "image_id"]).to_pylist()
    assert [row["text_id"] for row in texts] == ["9", "109", "7", "107", "5", "105"]
    assert texts[1]["image_id"] == images[0]["image_id"]
    (root / "annotations" / f"captions_train{year}.json").unlink()
    manifest, notes = made("coco", root, tmp_path / "n", captions=year)
    assert manifest.count("image") == 1
    assert any(note.startswith("coco: 0 images in split train") for note in notes)


def renamed(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace(f'"{old}"', f'"{new}"'), encoding="utf-8")


def test_renamed_keys_are_named_with_what_was_expected(tmp_path: Path) -> None:
    published = r"expected .*published at https://"
    root = tmp_path / "coco"
    touch(root / "val2017", ["000000000005.jpg"])
    path = dump(root / "annotations" / "captions_val2017.json", coco_json({5: "000000000005.jpg"}))
    good = path.read_text()
    for old, new, message in [
        ("caption", "text", r"annotations\[0\] has no caption"),
        ("file_name", "filename", r"images\[0\] has no file_name"),
        ("annotations", "sentences", "has no annotations, a list"),
    ]:
        renamed(path, old, new)
        with pytest.raises(VlpipeError, match=f"{message}.*{published}"):
            build("coco", root, tmp_path / "m")
        path.write_text(good)
    path.write_text(good.replace('"image_id": 5', '"image_id": 6', 1))
    with pytest.raises(VlpipeError, match=r"annotations\[0\] has image_id 6, which is none of the images"):
        build("coco", root, tmp_path / "m")
    with pytest.raises(VlpipeError, match=r"has no annotations/captions_train2014\.json"):
        build("coco", root, tmp_path / "m", {"captions": "2014"})
    assert not (tmp_path / "m").exists()


def test_the_real_photos_of_coco(shared: Path, tmp_path: Path) -> None:
    real = shared / "data" / "coco_sugarcrepe"
    root = tmp_path / "set"
    (root / "annotations").mkdir(parents=True)
    (root / "val2017").symlink_to(real / "images")
    (root / "annotations" / "captions_val2017.json").symlink_to(real / "captions.json")
    manifest, _ = made("coco", root, tmp_path / "m")
    expected = json.loads((real / "captions.json").read_text())["annotations"]
    found = {row["text_id"]: row["text"] for row in manifest.table("text").to_pylist()}
    assert found == {str(entry["id"]): entry["caption"] for entry in expected}
    assert manifest.count("image") == 50
