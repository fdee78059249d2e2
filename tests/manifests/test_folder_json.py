"""A folder of pictures and a JSON file: its forms are equal, and texts are kept to the letter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.manifest import Manifest

CAPTIONS = {
    "a/1.jpg": ['He said "no, no"\n- twice', "2020", "nan"],
    "b/1.jpg": [" null ", "naïve café", "a\ttab"],
}


def publish(root: Path, content: Any, file: str = "captions.json", images: str = "images") -> Path:
    for name in CAPTIONS:
        (root / images / name).parent.mkdir(parents=True, exist_ok=True)
        (root / images / name).write_bytes(b"jpeg")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    (root / file).write_text(text, encoding="utf-8")
    return root


def texts(manifest: Manifest) -> dict[str, str]:
    return {row["text_id"]: row["text"] for row in manifest.table("text").to_pylist()}


def listed(**more: str) -> list[dict[str, Any]]:
    return [{"image": name, "captions": found, **more} for name, found in CAPTIONS.items()]


FORMS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "list": ("captions.json", listed(), {}),
    "object": ("captions.json", CAPTIONS, {}),
    "lines": ("c.jsonl", "\n".join(json.dumps(row) for row in listed()) + "\n", {}),
    "bom": ("c.json", "\ufeff" + json.dumps(listed()), {}),
    "inside": ("c.json", {"info": {"year": 2020}, "annotations": listed()}, {"records": "annotations"}),
    "one a record": (
        "c.json",
        [{"file": name, "text": text} for name, found in CAPTIONS.items() for text in found],
        {"image": "file", "captions": "text"},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_makes_the_same_manifest(tmp_path: Path, form: str) -> None:
    file, content, settings = FORMS[form]
    manifest = build("folder_json", publish(tmp_path / "set", content, file), tmp_path / "m", settings)
    manifest.verify()
    rows = manifest.table("image").to_pylist()
    assert [(row["image_id"], row["path"], row["split"]) for row in rows] == [
        (name, name, None) for name in CAPTIONS
    ]
    assert all((manifest.image_root / row["path"]).is_file() for row in rows)
    assert texts(manifest) == {f"{name}#{n}": t for name, found in CAPTIONS.items() for n, t in enumerate(found)}


def test_ids_splits_and_folders_of_ones_own(tmp_path: Path) -> None:
    records = [{"key": 7, "img": "a/1.jpg", "cap": ["x", None, " ", "y"], "part": "dev"}]
    root = publish(tmp_path / "set", records, "x.json", "photos")
    (root / "other.json").write_text("[]")
    settings = {
        "file": "x.json",
        "images": "photos",
        "id": "key",
        "image": "img",
        "captions": "cap",
        "split": "part",
    }
    with pytest.raises(VlpipeError, match=r"missing, null or blank: .* record 1, .*with --set drop_blank=true"):
        build("folder_json", root, tmp_path / "m", settings)
    manifest = build("folder_json", root, tmp_path / "m", {**settings, "drop_blank": True})
    assert manifest.table("image").to_pylist()[0]["image_id"] == "7"
    assert manifest.table("text")["split"].to_pylist() == ["dev", "dev"]
    assert texts(manifest) == {"7#0": "x", "7#3": "y"}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "is not JSON"),
        ("[]", "has no records; expected images/"),
        ('["a.jpg"]', r"record 1 is a\.jpg; expected images/"),
        ('{"a": {"b": 1}}', "holds no list of records"),
        ('{"a.jpg": ["x"], "a.jpg": ["y"]}', "the key 'a.jpg' stands twice"),
        (
            '[{"file": "a.jpg", "captions": "x"}]',
            r"has no key 'image', but file, captions; name .*'image=\"KEY\"'",
        ),
        ('[{"image": "a.jpg", "text": "x"}]', "has no key 'captions', but image, text"),
        ('[{"image": "a.jpg", "captions": 2020}, {"image": "b.jpg", "captions": {"x": 1}}]', "text is .*dict"),
        (
            '[{"image": "a", "captions": "x", "split": "val"}, {"image": "a", "captions": "y"}]',
            "image 'a' has split",
        ),
    ],
)
def test_wrong_files(tmp_path: Path, content: str, what: str) -> None:
    with pytest.raises(VlpipeError, match=what):
        build("folder_json", publish(tmp_path / "set", content), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_wrong_folders(tmp_path: Path) -> None:
    with pytest.raises(VlpipeError, match="folder_json needs --root DIR; expected images/"):
        build("folder_json", None, tmp_path / "m")
    root = publish(tmp_path / "set", listed())
    with pytest.raises(VlpipeError, match=r"photos' is no folder; expected images/"):
        build("folder_json", root, tmp_path / "m", {"images": "photos"})
    with pytest.raises(VlpipeError, match=r"no\.json' cannot be read: No such file"):
        build("folder_json", root, tmp_path / "m", {"file": "no.json"})
    (root / "more.jsonl").write_text("")
    with pytest.raises(VlpipeError, match=r"holds 2 JSON files \(captions\.json, more\.jsonl\); name one with"):
        build("folder_json", root, tmp_path / "m")
    for name in ("more.jsonl", "captions.json"):
        (root / name).unlink()
    with pytest.raises(VlpipeError, match="holds no JSON file; expected images/"):
        build("folder_json", root, tmp_path / "m")


def test_the_real_photos(shared: Path, tmp_path: Path) -> None:
    """Flickr8k's list of captions is such a file: the same ids, texts and splits as its own data set reads."""
    root = shared / "data" / "flickr8k"
    manifest = build("folder_json", root, tmp_path / "m", {"file": "captions.jsonl"})
    assert (manifest.count("image"), manifest.count("text")) == (3750, 18750)
    assert manifest.digest == build("flickr8k", root, tmp_path / "m2").digest
