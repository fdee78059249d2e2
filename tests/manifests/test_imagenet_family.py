"""ImageNet and its five relatives on miniatures: WordNet ids, words, splits, subsets, wrong layouts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.imagenet import class_names, wordnet_ids
from vlpipe.manifests.manifest import Manifest

TENCH, GOLDFISH, PAPER = "n01440764", "n01443537", "n15075141"  # classes 0, 1 and 999
FOLDERS = {
    "imagenet_sketch": "sketch",
    "imagenet_a": "imagenet-a",
    "imagenet_o": "imagenet-o",
    "imagenet_r": "imagenet-r",
}


def put(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"jpeg")
    return root


def made(name: str, root: Path, out: Path, **settings: object) -> Manifest:
    manifest = build(name, root, out, {"templates": ["a {}"], **settings})
    manifest.verify()
    assert all((manifest.image_root / path).is_file() for path in manifest.table("image")["path"].to_pylist())
    return manifest


def prompted(manifest: Manifest) -> dict[str, str]:
    rows = manifest.table("text").to_pylist()
    return {dict(row["attributes"])["label"]: row["text"] for row in rows}


def test_ids_are_sorted_and_match_the_words() -> None:
    ids = wordnet_ids()
    assert ids == sorted(ids)
    assert len(set(ids)) == 1000
    names = class_names()
    assert (names[TENCH], names[GOLDFISH], names[PAPER]) == ("tench", "goldfish", "toilet paper")
    # ids where the order of the two lists would show: the crane that is a bird, and the one that builds
    assert (names["n02012849"], names["n03126707"]) == ("crane bird", "construction crane")


@pytest.mark.parametrize("place", [".", "imagenet", "ILSVRC/Data/CLS-LOC"])
def test_imagenet(tmp_path: Path, place: str) -> None:
    train = [f"train/{wnid}/{wnid}_{n}.JPEG" for wnid in (PAPER, TENCH) for n in (18, 7)]
    root = put(tmp_path / "set", *(f"{place}/{name}" for name in train))
    put(root, f"{place}/val/{TENCH}/ILSVRC2012_val_00000293.JPEG")
    notes: list[str] = []
    manifest = build("imagenet", root, tmp_path / "m", note=notes.append)
    rows = manifest.table("image").to_pylist()
    assert [(row["image_id"], row["split"], row["label"]) for row in rows] == [
        (f"train/{TENCH}/{TENCH}_18.JPEG", "train", TENCH),
        (f"train/{TENCH}/{TENCH}_7.JPEG", "train", TENCH),
        (f"train/{PAPER}/{PAPER}_18.JPEG", "train", PAPER),
        (f"train/{PAPER}/{PAPER}_7.JPEG", "train", PAPER),
        (f"val/{TENCH}/ILSVRC2012_val_00000293.JPEG", "val", TENCH),
    ]
    assert dict(rows[2]["attributes"]) == {"class": "toilet paper"}
    assert manifest.count("text") == 2 * 80
    assert notes == [
        "imagenet: 4 images in split train, published are 1,281,167",
        "imagenet: 1 images in split val, published are 50,000",
    ]


def test_imagenet_with_superclasses_and_one_split(tmp_path: Path) -> None:
    root = put(tmp_path / "set", f"val/{TENCH}/1.JPEG", f"val/{PAPER}/2.JPEG")
    above = {wnid: "fish" if wnid == TENCH else "thing" for wnid in wordnet_ids()}
    (tmp_path / "above.json").write_text(json.dumps(above))
    manifest = made("imagenet", root, tmp_path / "m", superclasses=str(tmp_path / "above.json"))
    rows = manifest.table("image").to_pylist()
    assert [dict(row["attributes"])["superclass"] for row in rows] == ["fish", "thing"]


@pytest.mark.parametrize("variant", ["matched-frequency", "threshold0.7", "top-images"])
def test_v2_maps_class_indices(tmp_path: Path, variant: str) -> None:
    folder = f"imagenetv2-{variant}-format-val"
    root = put(tmp_path / "set", *(f"{folder}/{index}/ab{index}.jpeg" for index in (999, 10, 1, 0)))
    manifest = made("imagenet_v2", root, tmp_path / "m", variant=variant)
    rows = manifest.table("image").to_pylist()
    ids = wordnet_ids()
    assert [(row["image_id"], row["label"]) for row in rows] == [
        (f"{index}/ab{index}.jpeg", ids[index]) for index in (0, 1, 10, 999)
    ]
    assert {row["split"] for row in rows} == {"test"}
    assert prompted(manifest)[TENCH] == "a tench"
    inside = made("imagenet_v2", root / folder, tmp_path / "m2", variant=variant)
    assert inside.digest == manifest.digest
    other = "top-images" if variant != "top-images" else "threshold0.7"
    for wrong in (root, root / folder):  # never one variant under another's name
        with pytest.raises(VlpipeError, match=r"is not ImageNetV2; expected imagenetv2-VARIANT-format-val"):
            build("imagenet_v2", wrong, tmp_path / "m3", {"variant": other})


@pytest.mark.parametrize("name", FOLDERS)
def test_relatives_have_the_classes_of_their_folders(tmp_path: Path, name: str) -> None:
    folder = FOLDERS[name]
    root = put(tmp_path / "set", f"{folder}/{PAPER}/art_1.jpg", f"{folder}/{GOLDFISH}/art_1.jpg")
    put(root, f"{folder}/README.txt")
    manifest = made(name, root, tmp_path / "m")
    rows = manifest.table("image").to_pylist()
    assert [row["image_id"] for row in rows] == [f"{GOLDFISH}/art_1.jpg", f"{PAPER}/art_1.jpg"]
    assert prompted(manifest) == {GOLDFISH: "a goldfish", PAPER: "a toilet paper"}
    if name == "imagenet_o":
        assert (rows[0]["label"], dict(rows[0]["attributes"])) == (None, {"taken_for": GOLDFISH})
    else:
        assert [row["label"] for row in rows] == [GOLDFISH, PAPER]
    assert ("rendition", "art") in rows[0]["attributes"] or name != "imagenet_r"
    assert made(name, root / folder, tmp_path / "m2").digest == manifest.digest


@pytest.mark.parametrize("name", ["imagenet", *FOLDERS])
def test_wrong_layouts_say_what_was_expected_and_where_it_is(tmp_path: Path, name: str) -> None:
    where = r"published at https://"
    with pytest.raises(VlpipeError, match=f"needs --root DIR; expected .*{where}"):
        build(name, None, tmp_path / "m")
    (tmp_path / "empty").mkdir()
    with pytest.raises(VlpipeError, match=f"'.*empty' is not ImageNet.*; expected .*WNID.*{where}"):
        build(name, tmp_path / "empty", tmp_path / "m")
    split = "val" if name == "imagenet" else FOLDERS[name]
    root = put(tmp_path / "set", f"{split}/{TENCH}/1.jpg", f"{split}/tench/1.jpg")
    with pytest.raises(VlpipeError, match=f"holds folder 'tench', which is no class of ImageNet; .*{where}"):
        build(name, root, tmp_path / "m")


def test_flat_validation_pictures_are_no_classes(tmp_path: Path) -> None:
    root = put(tmp_path / "set", "val/ILSVRC2012_val_00000001.JPEG")
    with pytest.raises(VlpipeError, match=r"holds no folders of classes; .*sort the flat validation pictures"):
        build("imagenet", root, tmp_path / "m")
