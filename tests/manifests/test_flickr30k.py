"""Flickr30k in every published form, on miniatures; Karpathy's JSON of Flickr8k."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from miniature import caption, dump, touch

from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.manifest import Manifest

FLICKR = {"1.jpg": "train", "22.jpg": "val", "3.jpg": "test"}


def flickr_karpathy(root: Path, name: str = "flickr30k") -> Path:
    images = []
    for number, (file, split) in enumerate(FLICKR.items()):
        sentences = [
            {"tokens": ["caption"], "raw": caption(file, k), "imgid": number, "sentid": number * 5 + k}
            for k in range(5)
        ]
        ids = [sentence["sentid"] for sentence in sentences]
        images.append({"sentids": ids, "imgid": number, "sentences": sentences, "split": split, "filename": file})
    return dump(root / f"dataset_{name}.json", {"images": images, "dataset": name})


def flickr_csv(root: Path) -> None:
    with (root / "flickr_annotations_30k.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["raw", "sentids", "split", "filename", "img_id"])
        for number, (name, split) in enumerate(FLICKR.items()):
            writer.writerow([json.dumps([caption(name, k) for k in range(5)]), "[]", split, name, number])


def flickr_tokens(root: Path, splits: Mapping[str, str] = FLICKR) -> None:
    lines = [f"{name}#{k}\t{caption(name, k)}" for name in FLICKR for k in range(5)]
    (root / "results_20130124.token").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for part in ("train", "val", "test"):
        names = [name.removesuffix(".jpg") for name, split in splits.items() if split == part]
        (root / f"{part}.txt").write_text("\n".join(names) + "\n")


def made(name: str, root: Path, out: Path, **settings: Any) -> tuple[Manifest, list[str]]:
    notes: list[str] = []
    manifest = build(name, root, out, settings, note=notes.append)
    manifest.verify()
    return manifest, notes


def test_all_forms_of_flickr30k_make_the_same_manifest(tmp_path: Path) -> None:
    root = tmp_path / "set"
    touch(root / "flickr30k-images", list(FLICKR))
    flickr_tokens(root)
    flickr_csv(root)
    flickr_karpathy(root)
    digests = []
    for form in ("token", "csv", "karpathy"):
        manifest, notes = made("flickr30k", root, tmp_path / form, captions=form)
        digests.append(manifest.digest)
        assert (notes == []) == (form == "token")  # the token file has no splits of its own
    assert len(set(digests)) == 1
    assert "flickr30k: 1 images in split train, published are 29,000" in notes
    assert manifest.table("image", ["image_id", "split"]).to_pylist() == [
        {"image_id": name, "split": split} for name, split in FLICKR.items()
    ]
    texts = manifest.table("text").to_pylist()
    assert [row["text_id"] for row in texts] == [f"{name}#{k}" for name in FLICKR for k in range(5)]
    assert texts[6]["text"] == caption("22.jpg", 1)
    assert {row["role"] for row in texts} == {"caption"}
    assert made("flickr30k", root, tmp_path / "default")[0].digest == digests[0]


def test_flickr30k_tokens_without_splits(tmp_path: Path) -> None:
    root = tmp_path / "set"
    touch(root / "photos", list(FLICKR))
    flickr_tokens(root)
    (root / "val.txt").unlink()
    manifest, _ = made("flickr30k", root, tmp_path / "m", images=str(root / "photos"))
    assert manifest.table("image")["split"].null_count == 3
    with pytest.raises(UsageError, match="captions"):
        build("flickr30k", root, tmp_path / "n", {"captions": "tokens"})
    with pytest.raises(VlpipeError, match="setting images: there is no folder"):
        build("flickr30k", root, tmp_path / "n", {"images": str(root / "nowhere")})


def test_flickr8k_in_karpathys_form(tmp_path: Path) -> None:
    root = tmp_path / "set"
    touch(root / "Flicker8k_Dataset", list(FLICKR))
    flickr_karpathy(root, "flickr8k")
    manifest, notes = made("flickr8k", root, tmp_path / "m")
    assert manifest.description.splits["texts"] == {"test": 5, "train": 5, "val": 5}
    assert len(notes) == 6


def test_absent_photos_are_an_error_or_left_out_or_kept(tmp_path: Path) -> None:
    root = tmp_path / "set"
    touch(root / "images", ["22.jpg"])
    flickr_karpathy(root)
    with pytest.raises(VlpipeError, match=r"2 of 3 photos are not in .*: 1\.jpg, 3\.jpg; unpack"):
        build("flickr30k", root, tmp_path / "m")
    manifest, _ = made("flickr30k", root, tmp_path / "m", absent="leave_out")
    assert (manifest.count("image"), manifest.count("text")) == (1, 5)
    assert made("flickr30k", root, tmp_path / "n", absent="keep")[0].count("image") == 3
    (root / "images" / "22.jpg").unlink()
    with pytest.raises(VlpipeError, match="3 of 3 photos"):
        build("flickr30k", root, tmp_path / "o", {"absent": "leave_out"})


def renamed(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace(f'"{old}"', f'"{new}"'), encoding="utf-8")


def test_renamed_keys_are_named_with_what_was_expected(tmp_path: Path) -> None:
    published = r"expected .*published at https://"
    root = tmp_path / "flickr"
    touch(root / "images", list(FLICKR))
    path = flickr_karpathy(root)
    renamed(path, "raw", "text")
    with pytest.raises(VlpipeError, match=rf"images\[0\] sentences\[0\] has no raw, text was looked.*{published}"):
        build("flickr30k", root, tmp_path / "m")
    path.write_text("{")
    with pytest.raises(VlpipeError, match=f"is not JSON.*{published}"):
        build("flickr30k", root, tmp_path / "m")
    dump(path, {"pictures": []})
    with pytest.raises(VlpipeError, match=f"has no images, a list was.*; its keys are pictures; {published}"):
        build("flickr30k", root, tmp_path / "m")
    path.unlink()
    flickr_csv(root)
    table = root / "flickr_annotations_30k.csv"
    table.write_text(table.read_text(encoding="utf-8").replace("raw,", "texts,", 1), encoding="utf-8")
    with pytest.raises(VlpipeError, match=f"line 2 has no raw.*{published}"):
        build("flickr30k", root, tmp_path / "m")
    assert not (tmp_path / "m").exists()
