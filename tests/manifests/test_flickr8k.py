"""Flickr8k in both layouts, right and wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vlpipe.foundation.errors import UnknownNameError, VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.manifest import Manifest

NAMES = ("b_1.jpg", "a_2.jpg", "c_3.jpg", "d_4.jpg")
SPLITS = {"trainImages": ["c_3.jpg", "b_1.jpg"], "devImages": ["a_2.jpg"], "testImages": ["d_4.jpg"]}
QUIRK = "2258277193_586949ec62.jpg.1"  # in the published token file, and not among the photos
UNSPLIT = "e_5.jpg"  # one of the 91


def publish(root: Path, photos: str = "Flicker8k_Dataset", texts: str = ".", newline: str = "\n") -> Path:
    (root / photos).mkdir(parents=True)
    (root / texts).mkdir(exist_ok=True)
    for name in (*NAMES, UNSPLIT):
        (root / photos / name).write_bytes(b"jpeg")
    tokens = [f"{name}#{k}\tCaption {k} of {name} ." for name in (*NAMES, QUIRK, UNSPLIT) for k in range(5)]
    (root / texts / "Flickr8k.token.txt").write_bytes((newline.join(tokens) + newline).encode())
    for split, names in SPLITS.items():
        (root / texts / f"Flickr_8k.{split}.txt").write_bytes((newline.join(names) + newline).encode())
    return root


def made(root: Path, out: Path) -> Manifest:
    manifest = build("flickr8k", root, out)
    manifest.verify()
    return manifest


@pytest.mark.parametrize("photos", ["Flicker8k_Dataset", "Flickr8k_Dataset"])
@pytest.mark.parametrize("texts", [".", "Flickr8k_text"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_published_layout(tmp_path: Path, photos: str, texts: str, newline: str) -> None:
    manifest = made(publish(tmp_path / "set", photos, texts, newline), tmp_path / "m")
    images = manifest.table("image").to_pylist()
    assert [row["image_id"] for row in images] == list(NAMES)  # the token file's order, the quirk and e_5 left out
    assert [row["split"] for row in images] == ["train", "val", "train", "test"]
    assert all((manifest.image_root / row["path"]).is_file() for row in images)
    texts_found = manifest.table("text").to_pylist()
    assert [row["text_id"] for row in texts_found] == [f"{name}#{k}" for name in NAMES for k in range(5)]
    assert texts_found[7]["text"] == "Caption 2 of a_2.jpg ."
    assert {row["role"] for row in texts_found} == {"caption"}
    assert manifest.description.splits["texts"] == {"train": 10, "val": 5, "test": 5}


def listed(root: Path) -> Path:
    (root / "images").mkdir(parents=True)
    split_of = {name: {"dev": "val"}.get(key[:-6], key[:-6]) for key, names in SPLITS.items() for name in names}
    lines = []
    for name in NAMES:
        (root / "images" / name).write_bytes(b"jpeg")
        captions = [f"Caption {k} of {name} ." for k in range(5)]
        lines.append(json.dumps({"image": name, "split": split_of[name], "captions": captions}) + "\n")
    (root / "captions.jsonl").write_text("".join(lines))
    return root


def test_both_layouts_make_the_same_manifest(tmp_path: Path) -> None:
    first = made(publish(tmp_path / "a"), tmp_path / "ma")
    assert first.digest == made(listed(tmp_path / "b"), tmp_path / "mb").digest


def test_wrong_layouts_say_what_was_expected_and_where_it_is(tmp_path: Path) -> None:
    expected = r"expected Flicker8k_Dataset/\*\.jpg with Flickr8k\.token\.txt .*published at https://"
    with pytest.raises(VlpipeError, match=f"needs --root DIR; {expected}"):
        build("flickr8k", None, tmp_path / "m")
    with pytest.raises(VlpipeError, match=f"has no folder.*{expected}"):
        build("flickr8k", tmp_path / "nowhere", tmp_path / "m")
    for name in ("token.txt", "photos", "images", "captions"):
        root = tmp_path / name
        root = publish(root) if name in ("token.txt", "photos") else listed(root)
        gone = {"token.txt": "Flickr8k.token.txt", "photos": "Flicker8k_Dataset", "captions": "captions.jsonl"}
        (root / gone.get(name, name)).rename(tmp_path / f"gone-{name}")
        with pytest.raises(VlpipeError, match=f"is not Flickr8k: it has no .*; {expected}"):
            build("flickr8k", root, tmp_path / "m")
    root = publish(tmp_path / "split")
    (root / "Flickr_8k.devImages.txt").unlink()
    with pytest.raises(VlpipeError, match=r"devImages\.txt' does not exist; expected"):
        build("flickr8k", root, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_wrong_contents_are_named(tmp_path: Path) -> None:
    root = publish(tmp_path / "set")
    tokens, dev = root / "Flickr8k.token.txt", root / "Flickr_8k.devImages.txt"
    good_tokens, good_dev = tokens.read_text(), dev.read_text()
    tokens.write_text(good_tokens.replace("\t", " ", 1))
    with pytest.raises(VlpipeError, match=r"line 1 is 'b_1\.jpg#0 Caption.*line is NAME\.jpg#N, a tab, a text"):
        build("flickr8k", root, tmp_path / "m")
    tokens.write_text(good_tokens)
    dev.write_text(good_dev + "d_4.jpg\n")
    with pytest.raises(VlpipeError, match=r"'d_4\.jpg' is in split val too"):
        build("flickr8k", root, tmp_path / "m")
    dev.write_text(good_dev + "z_9.jpg\n")
    with pytest.raises(VlpipeError, match=r"1 photos of the splits have no caption .* first 'z_9\.jpg'"):
        build("flickr8k", root, tmp_path / "m")
    dev.write_text(good_dev)
    (root / "Flicker8k_Dataset" / "a_2.jpg").unlink()
    with pytest.raises(VlpipeError, match=r"1 of 4 photos are not in .*a_2\.jpg"):
        build("flickr8k", root, tmp_path / "m")
    tokens.write_bytes(b"caf\xe9")
    with pytest.raises(VlpipeError, match="not UTF-8"):
        build("flickr8k", root, tmp_path / "m")
    root = listed(tmp_path / "listed")
    text = (root / "captions.jsonl").read_text()
    (root / "captions.jsonl").write_text(text + text)
    with pytest.raises(VlpipeError, match=r"line 5: image 'b_1\.jpg' stands twice; expected image \(once\)"):
        build("flickr8k", root, tmp_path / "m")


def test_there_is_nothing_to_set(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="no setting is named 'seed'"):
        build("flickr8k", listed(tmp_path / "set"), tmp_path / "m", {"seed": 1})


def test_the_real_photos(shared: Path, tmp_path: Path) -> None:
    manifest = made(shared / "data" / "flickr8k", tmp_path / "m")
    assert (manifest.count("image"), manifest.count("text")) == (3750, 18750)
    assert manifest.description.splits["images"] == {"train": 2500, "val": 250, "test": 1000}
    first = manifest.table("text")["text"][0].as_py()
    assert first == "A black dog and a spotted dog are fighting"
