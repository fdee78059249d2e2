"""DOCCI and ImageInWords on miniatures; and what every set says of a folder that is not its own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.manifest import Manifest

PUBLISHED = r"expected .*published at https://"
SETS = [
    "aro", "coco", "coco_objects", "docci", "flickr30k", "flickr30k_entities", "flickr8k", "iiw", "pope", "rococo",
    "sugarcrepe", "winoground",
]  # fmt: skip


def json_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def made(name: str, root: Path, out: Path, **settings: Any) -> tuple[Manifest, list[str]]:
    notes: list[str] = []
    manifest = build(name, root, out, settings, note=notes.append)
    manifest.verify()
    return manifest, notes


def test_docci(tmp_path: Path) -> None:
    root = tmp_path / "set"
    names = {
        "train_00000": "train",
        "qual_dev_00000": "qual_dev",
        "qual_test_00000": "qual_test",
        "test_00000": "test",
    }
    path = json_lines(
        root / "docci_descriptions.jsonlines",
        (
            {
                "example_id": name,
                "split": split,
                "image_file": f"{name}.jpg",
                "description": f"A long text.\n\n{name}",
            }
            for name, split in names.items()
        ),
    )
    (root / "images").mkdir()
    for name in names:
        (root / "images" / f"{name}.jpg").write_bytes(b"jpeg")
    manifest, notes = made("docci", root, tmp_path / "m")
    assert manifest.description.splits["images"] == dict.fromkeys(sorted(names.values()), 1)
    assert "docci: 1 texts in split train, published are 9,647" in notes
    text = manifest.table("text").to_pylist()[1]
    assert (text["text_id"], text["image_id"], text["text"]) == (
        "qual_dev_00000",
        "qual_dev_00000.jpg",
        "A long text.\n\nqual_dev_00000",
    )
    cut, notes = made("docci", root, tmp_path / "cut", sentences=True)
    assert cut.table("text")["text"].to_pylist()[:2] == ["A long text", "train_00000"]
    assert not [note for note in notes if "texts" in note]
    path.write_text(path.read_text().replace("description", "caption"))
    with pytest.raises(VlpipeError, match=f"line 1 has no description, text .*{PUBLISHED}"):
        build("docci", root, tmp_path / "n")


def described(root: Path) -> Path:
    things = [
        {"label": "Wall", "description": "A wall.", "normalized_coords": ["999", "0", "333", "999"]},
        {"label": "Bee", "description": "A bee.", "normalized_coords": ["0", "111", "333", "222"]},
    ]
    json_lines(
        root / "datasets" / "IIW-400" / "data.jsonl",
        [
            {"image/key": "aar_test_04600", "IIW": "By people.", "IIW-P5B": "By a model.", "objects": things},
            {"image/key": "aar_test_04601", "IIW": "More.", "IIW-P5B": "", "objects": []},
        ],
    )
    json_lines(root / "datasets" / "DCI_TEST" / "data.jsonl", [{"image": "sa_1.jpg", "IIW": "x", "ex_id": "1"}])
    json_lines(root / "datasets" / "CM_3600" / "data.jsonl", [{"image/key": "0a", "IIW-P5B": "x"}])
    (root / "images").mkdir()
    for name in ("aar_test_04600", "aar_test_04601", "sa_1", "0a"):
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.new("RGB", (300, 600)).save(root / "images" / f"{name}.jpg", exif=exif)  # upright 600 x 300
    return root


def test_imageinwords(tmp_path: Path) -> None:
    root = described(tmp_path / "set")
    manifest, notes = made("iiw", root, tmp_path / "m", authors=["IIW", "IIW-P5B"])
    assert notes == ["iiw: 2 images in split test, published are 400"]
    texts = {row["text_id"]: row for row in manifest.table("text").to_pylist()}
    assert list(texts) == ["aar_test_04600#IIW", "aar_test_04600#IIW-P5B", "aar_test_04601#IIW"]
    assert dict(texts["aar_test_04600#IIW-P5B"]["attributes"]) == {"author": "IIW-P5B"}
    wall, bee = manifest.table("region").to_pylist()
    assert wall["boxes"] == [[pytest.approx(value) for value in (0, 100, 600, 300)]]
    assert bee["boxes"] == [[pytest.approx(value) for value in (600 / 9, 0, 1200 / 9, 100)]]
    assert (bee["image_id"], bee["label"], bee["text_id"]) == ("aar_test_04600", "Bee", None)
    assert dict(bee["attributes"]) == {"description": "A bee."}
    assert made("iiw", root, tmp_path / "n", subset="DCI_Test")[0].table("image")["path"][0].as_py() == "sa_1.jpg"
    model = made("iiw", root, tmp_path / "o", subset="CM_3600", authors=["IIW-P5B"])[0]
    assert model.table("text")["text_id"].to_pylist() == ["0a#IIW-P5B"]


def test_what_people_described_together_and_in_sentences(tmp_path: Path) -> None:
    root = described(tmp_path / "set")
    long = "A dog. It is 1.5 m high,  e.g. tall.\nIt sleeps..  Done"
    json_lines(root / "datasets" / "DOCCI_Test" / "data.jsonl", [{"image/key": "test_1", "IIW": long}])
    Image.new("RGB", (4, 4)).save(root / "images" / "test_1.jpg")
    manifest, notes = made("iiw", root, tmp_path / "m", subset="people", sentences=True)
    assert notes == ["iiw: 4 images in split test, published are 612"]
    texts = {row["text_id"]: (row["text"], row["image_id"]) for row in manifest.table("text").to_pylist()}
    assert texts == {
        "aar_test_04600#IIW.0": ("By people", "aar_test_04600"),
        "aar_test_04601#IIW.0": ("More", "aar_test_04601"),
        "test_1#IIW.0": ("A dog", "test_1"),
        "test_1#IIW.1": ("It is 1.5 m high,  e.g", "test_1"),  # no rule here knows abbreviations
        "test_1#IIW.2": ("tall", "test_1"),
        "test_1#IIW.3": ("It sleeps.", "test_1"),
        "test_1#IIW.4": ("Done", "test_1"),
        "sa_1.jpg#IIW.0": ("x", "sa_1.jpg"),
    }
    authors = {dict(row["attributes"])["author"] for row in manifest.table("text").to_pylist()}
    assert authors == {"IIW"}
    assert len(manifest.table("region")) == 2


def test_imageinwords_in_wrong_forms(tmp_path: Path) -> None:
    root = described(tmp_path / "set")
    with pytest.raises(VlpipeError, match="has no text by IIW; set other authors"):
        build("iiw", root, tmp_path / "m", {"subset": "CM_3600"})
    with pytest.raises(VlpipeError, match=rf"has no datasets/DOCCI_Test/data\.jsonl or.*{PUBLISHED}"):
        build("iiw", root, tmp_path / "m", {"subset": "DOCCI_Test"})
    path = root / "datasets" / "IIW-400" / "data.jsonl"
    path.write_text(path.read_text().replace('"333"', '"left"', 1))
    with pytest.raises(VlpipeError, match=rf"objects\[0\] has normalized_coords .*four numbers.*{PUBLISHED}"):
        build("iiw", root, tmp_path / "m")
    path.write_text(path.read_text().replace("image/key", "key"))
    with pytest.raises(VlpipeError, match=f"line 1 has no image, text .*{PUBLISHED}"):
        build("iiw", root, tmp_path / "m")


@pytest.mark.parametrize("name", SETS)
def test_a_folder_of_something_else(tmp_path: Path, name: str) -> None:
    (tmp_path / "else").mkdir()
    for root, message in [
        (None, "needs --root DIR"),
        (tmp_path / "nowhere", "has no folder"),
        (tmp_path / "else", "else' .*has no "),
    ]:
        with pytest.raises(VlpipeError, match=f"{message}.*{PUBLISHED}") as caught:
            build(name, root, tmp_path / "m")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "m").exists()
