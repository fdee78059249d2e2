"""SugarCrepe and RoCOCO, on miniatures and on the real texts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from miniature import dump, made, rows, touch

from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.manifests.build import build

SUBSETS = ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")
KINDS = ("same_concept", "diff_concept", "rand_voca", "danger")
PUBLISHED = r"expected .*published at https://"


def pair(file: str, words: str) -> dict[str, str]:
    return {"filename": file, "caption": f"{words} ", "negative_caption": f"not {words}"}


def sugar(root: Path, where: str = "data") -> Path:
    for name in SUBSETS:
        dump(root / where / f"{name}.json", {"0": pair("1.jpg", name), "12": pair(f"{name}.jpg", "a cat")})
    touch(root / "val2017", ["1.jpg", *(f"{name}.jpg" for name in SUBSETS)])
    return root


@pytest.mark.parametrize("where", ["data", "."])
def test_sugarcrepe(tmp_path: Path, where: str) -> None:
    manifest = made("sugarcrepe", sugar(tmp_path / "set", where), tmp_path / "m")
    assert (manifest.count("image"), manifest.count("text")) == (8, 28)
    texts = rows(manifest)
    assert texts["swap_obj/12#negative"] == {
        "text_id": "swap_obj/12#negative",
        "text": "not a cat",
        "image_id": "swap_obj.jpg",
        "role": "hard_negative",
        "source_text_id": "swap_obj/12",
        "split": "test",
        "attributes": [("subset", "swap_obj")],
    }
    assert texts["swap_obj/12"]["role"] == "caption"
    assert texts["add_att/0"]["text"] == "add_att "
    some = made("sugarcrepe", tmp_path / "set", tmp_path / "n", subsets=["swap_att", "add_obj", "swap_att"])
    assert (some.count("image"), some.count("text")) == (3, 8)


def test_sugarcrepe_in_wrong_forms(tmp_path: Path) -> None:
    root = sugar(tmp_path / "set")
    with pytest.raises(UsageError, match="subsets"):
        build("sugarcrepe", root, tmp_path / "m", {"subsets": ["add_ent"]})
    dump(root / "data" / "swap_obj.json", {"3": {"filename": "1.jpg", "caption": "x", "negative": "y"}})
    with pytest.raises(VlpipeError, match=f"pair 3 has no negative_caption, .*keys are filename.*{PUBLISHED}"):
        build("sugarcrepe", root, tmp_path / "m")
    dump(root / "data" / "swap_obj.json", [])
    with pytest.raises(VlpipeError, match=f"no object of pairs by number; {PUBLISHED}"):
        build("sugarcrepe", root, tmp_path / "m")
    (root / "data" / "swap_obj.json").unlink()
    with pytest.raises(VlpipeError, match=rf"has no data/swap_obj\.json or swap_obj\.json; {PUBLISHED}"):
        build("sugarcrepe", root, tmp_path / "m")


def test_the_real_pairs_join_their_photos(shared: Path, tmp_path: Path) -> None:
    data = shared / "data"
    images = str(data / "coco_sugarcrepe" / "images")
    manifest = made("sugarcrepe", data / "sugarcrepe", tmp_path / "m", images=images, absent="leave_out")
    assert (manifest.count("image"), manifest.count("text")) == (50, 610)
    texts = rows(manifest)
    found = Counter(
        (row["image_id"], dict(row["attributes"])["subset"], texts[row["source_text_id"]]["text"], row["text"])
        for row in texts.values()
        if row["role"] == "hard_negative"
    )
    listed = json.loads((data / "coco_sugarcrepe" / "sugarcrepe_pairs.json").read_text())
    keys = ("filename", "subset", "caption", "negative_caption")
    assert found == Counter(tuple(entry[key] for key in keys) for entry in listed)
    everything = made("sugarcrepe", data / "sugarcrepe", tmp_path / "n", images=images, absent="keep")
    assert everything.count("text") == 2 * 7511
    counts = Counter(name.partition("/")[0] for name in rows(everything) if not name.endswith("#negative"))
    assert [counts[name] for name in SUBSETS] == [692, 2062, 788, 1652, 1406, 666, 245]


def rococo(root: Path) -> Path:
    for kind in KINDS:
        entries = [
            {
                "image": f"val2014/{n}.jpg",
                "caption": [f"c{n}{k}" for k in range(own)] + [f"{kind}{k}" for k in range(5)],
            }
            for n, own in ((1, 5), (2, 6))
        ]
        dump(root / "annotations" / f"{kind}.json", entries)
    touch(root, ["val2014/1.jpg", "val2014/2.jpg"])
    return root


def test_rococo(tmp_path: Path) -> None:
    manifest = made("rococo", rococo(tmp_path / "set"), tmp_path / "m")
    texts = rows(manifest)
    assert len(texts) == 11 + 4 * 10
    assert texts["val2014/2.jpg#4#danger"] == {
        "text_id": "val2014/2.jpg#4#danger",
        "text": "danger4",
        "image_id": "val2014/2.jpg",
        "role": "perturbed:danger",
        "source_text_id": "val2014/2.jpg#4",
        "split": "test",
    }
    assert texts["val2014/2.jpg#5"]["role"] == "caption"  # the sixth caption has no perturbed form
    assert "val2014/2.jpg#5#danger" not in texts
    assert made("rococo", tmp_path / "set", tmp_path / "n", kinds=["rand_voca"]).count("text") == 21
    dump(tmp_path / "set" / "annotations" / "danger.json", [{"image": "val2014/1.jpg", "caption": ["x"] * 9}])
    with pytest.raises(VlpipeError, match=f"has 9 captions, 10 or more were looked for; {PUBLISHED}"):
        build("rococo", tmp_path / "set", tmp_path / "m")
    dump(tmp_path / "set" / "annotations" / "danger.json", [{"image": "val2014/1.jpg", "caption": ["x"] * 10}])
    with pytest.raises(VlpipeError, match=r"danger\.json' has other captions .*first: val2014/1\.jpg"):
        build("rococo", tmp_path / "set", tmp_path / "m")


def test_the_real_rococo(shared: Path, tmp_path: Path) -> None:
    data = shared / "data" / "rococo"
    manifest = made("rococo", data, tmp_path / "m", absent="keep")
    assert (manifest.count("image"), manifest.count("text")) == (5000, 25010 + 4 * 25000)
    published = json.loads((data / "coco_karpathy_test.json").read_text())
    texts = rows(manifest)
    own = [row["text"] for row in texts.values() if row["role"] == "caption"]
    assert own == [text for entry in published for text in entry["caption"]]
    first = published[0]["image"]
    assert (
        texts[f"{first}#0#same_concept"]["text"] == "a catchers with a red helmet on a small moped on a dirt road"
    )
    equal = [row for row in texts.values() if "#danger" in row["text_id"]]
    assert sum(row["text"] == texts[row["source_text_id"]]["text"] for row in equal) == 3
