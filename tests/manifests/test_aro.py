"""ARO's four sets on miniatures, and its word order rules by their properties."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.orders import RULES, plain, reordered
from vlpipe.manifests.pictures import crop_path, write_crop

pytest.importorskip("textblob", reason="the tagger is an extra")
CAPTION = "A big man holds the small red umbrella near two old dogs."
PUBLISHED = r"expected .*published at https://"


def case(path: str, box: tuple[float, ...], words: tuple[str, str], **more: Any) -> dict[str, Any]:
    sides = dict(zip(("bbox_x", "bbox_y", "bbox_w", "bbox_h"), box, strict=True))
    return {
        "image_id": path[:-4],
        "image_path": path,
        "true_caption": words[0],
        "false_caption": words[1],
        **sides,
        **more,
    }


def relation(root: Path, name: str = "relation") -> Path:
    (root / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for file in ("2327917.jpg", "498335.jpg"):
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).save(root / "images" / file)
    words = ("the door is to the left of the shirt", "the shirt is to the left of the door")
    more: dict[str, Any] = {"relation_name": "to the left of"}
    if name == "attribution":
        more = {"attributes": ["white", "open"], "object_name": "x"}
    cases = [
        case("2327917.jpg", (3, 4, 10, 6), words, **more),
        case("2327917.jpg", (3, 4, 10, 6), words[::-1], **more),
        case("498335.jpg", (25, 0, 10, 20), words, **more),
    ]
    (root / f"visual_genome_{name}.json").write_text(json.dumps(cases))
    return root


def made(root: Path, out: Path, **settings: Any) -> Manifest:
    manifest = build("aro", root, out, settings)
    manifest.verify()
    return manifest


def test_relation_shows_the_part_that_a_caption_is_about(tmp_path: Path) -> None:
    root = relation(tmp_path / "set")
    manifest = made(root, tmp_path / "m")
    images = manifest.table("image").to_pylist()
    assert [row["image_id"] for row in images] == ["2327917.jpg@3,4,10,6", "498335.jpg@25,0,10,20"]
    for row, (x, y, x1, y1) in zip(images, [(3, 4, 13, 10), (25, 0, 35, 20)], strict=True):
        with Image.open(manifest.image_root / row["path"]) as part:
            found = np.asarray(part)
        whole = np.zeros((20, 40, 3), np.uint8)  # what reaches out is black
        with Image.open(root / "images" / row["image_id"].partition("@")[0]) as picture:
            whole[:20, :30] = np.asarray(picture.convert("RGB"))
        np.testing.assert_array_equal(found, whole[y:y1, x:x1])
    texts = manifest.table("text").to_pylist()
    assert [row["text_id"] for row in texts][:3] == ["vg_relation/0", "vg_relation/0#negative", "vg_relation/1"]
    assert texts[1] | {"attributes": dict(texts[1]["attributes"])} == {
        "text_id": "vg_relation/0#negative",
        "text": "the shirt is to the left of the door",
        "image_id": "2327917.jpg@3,4,10,6",
        "role": "hard_negative",
        "source_text_id": "vg_relation/0",
        "group_id": None,
        "split": "test",
        "attributes": {"relation": "to the left of"},
    }
    assert manifest.count("region") == 0
    assert made(root, tmp_path / "m").digest == manifest.digest


def test_attribution_on_whole_photos(tmp_path: Path) -> None:
    root = relation(tmp_path / "set", "attribution")
    manifest = made(root, tmp_path / "m", subset="vg_attribution", crop=False)
    assert [row["image_id"] for row in manifest.table("image").to_pylist()] == ["2327917.jpg", "498335.jpg"]
    regions = manifest.table("region").to_pylist()
    assert len(regions) == 6
    assert regions[1]["boxes"] == [[3, 4, 13, 10]]
    assert (regions[1]["text_id"], regions[1]["image_id"]) == ("vg_attribution/0#negative", "2327917.jpg")
    attributes = dict(manifest.table("text")["attributes"][0].as_py())
    assert attributes == {"attribute_1": "white", "attribute_2": "open"}


def test_wrong_cases_are_named(tmp_path: Path) -> None:
    root = relation(tmp_path / "set")
    path = root / "visual_genome_relation.json"
    good = path.read_text()
    path.write_text(good.replace("bbox_w", "bbox_width", 1))
    with pytest.raises(VlpipeError, match=rf"\[0\] has no bbox_w, a number was looked for.*{PUBLISHED}"):
        build("aro", root, tmp_path / "m")
    path.write_text(good.replace('"bbox_w": 10', '"bbox_w": 0', 1))
    with pytest.raises(VlpipeError, match=r"the box \(3, 4, 0, 6\) has no pixels"):
        build("aro", root, tmp_path / "m")
    path.write_text("{}")
    with pytest.raises(VlpipeError, match=f"no list of test cases; {PUBLISHED}"):
        build("aro", root, tmp_path / "m")
    with pytest.raises(VlpipeError, match=rf"has no visual_genome_attribution\.json; {PUBLISHED}"):
        build("aro", root, tmp_path / "m", {"subset": "vg_attribution"})
    with pytest.raises(VlpipeError, match="leads out of its folder"):
        crop_path("../x.jpg", (0, 0, 1, 1))
    (root / "images" / "498335.jpg").write_bytes(b"no picture")
    with pytest.raises(VlpipeError, match=r"498335\.jpg' cannot be cropped"):
        write_crop(root / "images" / "498335.jpg", (0, 0, 1, 1), tmp_path / "x.png")


def orders(root: Path, file: str, folder: str) -> Path:
    entries = [
        {"image": f"{folder}/1.jpg", "caption": [CAPTION, "A dog."]},
        {"image": f"{folder}/2.jpg", "caption": ["Two \"dogs\": (brown) near a (white) cat!  " + "word " * 40]},
    ]  # fmt: skip
    (root / folder).mkdir(parents=True)
    for number in (1, 2):
        (root / folder / f"{number}.jpg").write_bytes(b"jpeg")
    (root / file).write_text(json.dumps(entries))
    return root


@pytest.mark.parametrize(
    ("subset", "file", "folder"),
    [
        ("coco_order", "coco_karpathy_test.json", "val2014"),
        ("flickr30k_order", "flickr30k_test.json", "flickr30k-images"),
    ],
)
def test_order_sets(tmp_path: Path, subset: str, file: str, folder: str) -> None:
    root = orders(tmp_path / "set", file, folder)
    manifest = made(root, tmp_path / "m", subset=subset)
    assert [row["image_id"] for row in manifest.table("image").to_pylist()] == [
        f"{folder}/1.jpg",
        f"{folder}/2.jpg",
    ]
    texts = {row["text_id"]: row for row in manifest.table("text").to_pylist()}
    first = texts[f"{folder}/1.jpg#0"]
    assert first["text"] == "a big man holds the small red umbrella near two old dogs"
    forms = [row for row in texts.values() if row["source_text_id"] == first["text_id"]]
    assert [row["role"] for row in forms] == [f"perturbed:{name}" for name in RULES]
    for row in forms:
        assert Counter(row["text"].split()) == Counter(first["text"].split())
        assert row["text"] != first["text"]
    long = texts[f"{folder}/2.jpg#0"]["text"]
    assert long.startswith("two dogs brown near a white cat word")
    assert len(long.split()) == 30
    # "a dog" has one noun and nothing else to exchange it with: such a form would be the caption itself
    assert f"{folder}/1.jpg#1#shuffle_nouns_and_adj" not in texts
    again = made(root, tmp_path / "n", subset=subset)
    assert again.digest == manifest.digest
    assert made(root, tmp_path / "o", subset=subset, seed=1).digest != manifest.digest


def test_a_rule_moves_its_own_words_only() -> None:
    words = ["a", "big", "man", "holds", "the", "small", "red", "umbrella", "."]
    tags = ["DT", "JJ", "NN", "VBZ", "DT", "JJ", "JJ", "NN", "."]
    for seed in range(20):
        moved = {name: rule(list(words), tags, random.Random(seed)) for name, rule in RULES.items()}
        named = moved["shuffle_nouns_and_adj"]
        assert [named[at] for at in (0, 3, 4, 8)] == ["a", "holds", "the", "."]
        assert sorted(named[at] for at in (2, 7)) == ["man", "umbrella"]
        assert sorted(named[at] for at in (1, 5, 6)) == ["big", "red", "small"]
        others = moved["shuffle_allbut_nouns_and_adj"]
        assert [others[at] for at in (1, 2, 5, 6, 7)] == ["big", "man", "small", "red", "umbrella"]
        threes = [words[at : at + 3] for at in (0, 3, 6)]
        within = moved["shuffle_within_trigrams"]
        assert [sorted(within[at : at + 3]) for at in (0, 3, 6)] == [sorted(part) for part in threes]
        whole = moved["shuffle_trigrams"]
        assert sorted(whole[at : at + 3] for at in (0, 3, 6)) == sorted(threes)


@given(st.lists(st.sampled_from("abcdefg"), max_size=11), st.integers(0, 99))
def test_rules_keep_every_word(words: list[str], seed: int) -> None:
    tags = [{"a": "NN", "b": "JJ", "c": "NNS"}.get(word, "DT") for word in words]
    for rule in RULES.values():
        assert Counter(rule(list(words), tags, random.Random(seed))) == Counter(words)


def test_an_order_depends_on_seed_and_caption_only() -> None:
    first = dict(reordered(CAPTION, "1#0", 0))
    assert dict(reordered(CAPTION, "1#0", 0)) == first
    assert dict(reordered(CAPTION, "1#1", 0)) != first
    assert dict(reordered(CAPTION, "1#0", 1)) != first


def test_plain_by_hand() -> None:
    assert plain('A (very)  "big" dog; runs: #1 ~ now.\n', 30) == "a very big dog runs 1 now"
    assert plain("one two, three four", 3) == "one two, three"
