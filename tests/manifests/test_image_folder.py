"""Pictures in folders of classes: layouts, order, ids, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.check import check
from vlpipe.manifests.manifest import Manifest


def put(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), "red").save(root / name, format="PNG")
    return root


def rows(manifest: Manifest) -> list[tuple[str, str | None, str]]:
    found = manifest.table("image").to_pylist()
    assert all(row["image_id"] == row["path"] for row in found)
    return [(row["path"], row["split"], row["label"]) for row in found]


def test_classes_in_the_root_in_one_order(tmp_path: Path) -> None:
    root = put(tmp_path / "set", "b/2.JPG", "b/10.png", "a/deep/er/1.webp", "a/1.jpg", "a/deep.jpg", "c/é ö.png")
    (root / "a" / "notes.txt").write_text("no picture")
    (root / "a" / ".1.jpg").write_bytes(b"hidden")
    put(root, ".git/x/1.jpg")
    manifest = build("image_folder", root, tmp_path / "m", {"templates": "none"})
    assert rows(manifest) == [
        ("a/1.jpg", None, "a"),
        ("a/deep.jpg", None, "a"),
        ("a/deep/er/1.webp", None, "a"),
        ("b/10.png", None, "b"),
        ("b/2.JPG", None, "b"),
        ("c/é ö.png", None, "c"),
    ]
    assert check(manifest).errors == []
    assert manifest.count("text") == 0
    again = build("image_folder", root, tmp_path / "m2", {"templates": "none"})
    assert again.digest == manifest.digest


def test_the_same_file_name_in_four_folders(tmp_path: Path) -> None:
    root = put(tmp_path / "set", "train/a/1.jpg", "train/b/1.jpg", "test/a/1.jpg", "test/b/1.JPG")
    manifest = build("image_folder", root, tmp_path / "m")
    assert rows(manifest) == [
        ("train/a/1.jpg", "train", "a"),
        ("train/b/1.jpg", "train", "b"),
        ("test/a/1.jpg", "test", "a"),
        ("test/b/1.JPG", "test", "b"),
    ]
    assert manifest.count("text") == 2 * 8


def test_splits_by_any_spelling(tmp_path: Path) -> None:
    root = put(tmp_path / "set", "Training/a/1.jpg", "validation/a/1.jpg", "testing/b/1.jpg")
    found = rows(build("image_folder", root, tmp_path / "m"))
    assert [split for _, split, _ in found] == ["train", "val", "test"]


def test_layout_and_split_can_be_said(tmp_path: Path) -> None:
    root = put(tmp_path / "set", "train/1.jpg", "car/1.jpg")  # a class that is called train
    with pytest.raises(VlpipeError, match=r"holds train beside car; expected only splits or only classes: say"):
        build("image_folder", root, tmp_path / "m")
    found = rows(build("image_folder", root, tmp_path / "m", {"layout": "classes", "split": "test"}))
    assert found == [("car/1.jpg", "test", "car"), ("train/1.jpg", "test", "train")]
    with pytest.raises(VlpipeError, match="holds train beside car"):
        build("image_folder", root, tmp_path / "m2", {"layout": "splits"})
    with pytest.raises(VlpipeError, match="has folders of splits; leave it out"):
        build("image_folder", put(tmp_path / "s", "val/a/1.jpg"), tmp_path / "m2", {"split": "test"})


def test_what_is_no_folder_of_classes(tmp_path: Path) -> None:
    expected = r"expected DIR/SPLIT/CLASS/\*\.jpg"
    with pytest.raises(VlpipeError, match=f"needs --root DIR; {expected}"):
        build("image_folder", None, tmp_path / "m")
    with pytest.raises(VlpipeError, match=f"has no folder .*{expected}"):
        build("image_folder", tmp_path / "no", tmp_path / "m")
    (tmp_path / "flat").mkdir()
    put(tmp_path / "flat", "1.jpg")
    with pytest.raises(VlpipeError, match=f"holds no folders of classes; {expected}"):
        build("image_folder", tmp_path / "flat", tmp_path / "m")
    (put(tmp_path / "set", "a/1.jpg") / "b").mkdir()
    with pytest.raises(VlpipeError, match=r"set/b' is a class without pictures"):
        build("image_folder", tmp_path / "set", tmp_path / "m")
    assert not (tmp_path / "m").exists()
