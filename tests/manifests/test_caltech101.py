"""Caltech-101 on a miniature: the clutter class, the archive's folders, wrong layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.build import build

CLASSES = ("BACKGROUND_Google", "Faces", "Faces_easy", "water_lilly")


def publish(root: Path, home: str) -> Path:
    for number, name in enumerate(CLASSES, start=1):
        folder = root / home / "101_ObjectCategories" / name
        folder.mkdir(parents=True)
        for picture in range(1, number + 1):
            (folder / f"image_{picture:04d}.jpg").write_bytes(b"jpeg")
    return root


@pytest.mark.parametrize("home", [".", "caltech-101", "caltech101"])
def test_clutter_is_left_out_unless_asked_for(tmp_path: Path, home: str) -> None:
    root = publish(tmp_path / "set", home)
    manifest = build("caltech101", root, tmp_path / "m", {"templates": ["a {}"]})
    rows = manifest.table("image").to_pylist()
    assert [row["label"] for row in rows] == ["Faces"] * 2 + ["Faces_easy"] * 3 + ["water_lilly"] * 4
    assert rows[0]["image_id"] == "Faces/image_0001.jpg"
    assert (manifest.image_root / rows[0]["path"]).is_file()
    assert manifest.table("text")["text"].to_pylist() == ["a Faces", "a Faces easy", "a water lilly"]
    whole = build("caltech101", root, tmp_path / "m2", {"background": True})
    assert whole.count("image") == 10
    assert whole.table("image")["label"][0].as_py() == "BACKGROUND_Google"


def test_wrong_layouts(tmp_path: Path) -> None:
    expected = r"expected 101_ObjectCategories/CLASS/image_0001\.jpg .*published at https://data\.caltech\.edu"
    with pytest.raises(VlpipeError, match=f"needs --root DIR; {expected}"):
        build("caltech101", None, tmp_path / "m")
    with pytest.raises(VlpipeError, match=f"is not Caltech-101: .*{expected}"):
        build("caltech101", tmp_path, tmp_path / "m")
    root = tmp_path / "set"
    (root / "101_ObjectCategories" / "BACKGROUND_Google").mkdir(parents=True)
    with pytest.raises(VlpipeError, match=f"holds no folders of classes; {expected}"):
        build("caltech101", root, tmp_path / "m")
