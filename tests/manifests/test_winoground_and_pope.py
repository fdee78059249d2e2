"""Winoground and POPE on miniatures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from miniature import made, rows, touch

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.build import build

PUBLISHED = r"expected .*published at https://"


def winoground(root: Path) -> Path:
    lines = [
        {
            "id": number, "image_0": f"ex_{number}_img_0", "image_1": f"ex_{number}_img_1", "tag": "Noun",
            "caption_0": "an old person kisses a young person", "caption_1": "a young person kisses an old person",
            "secondary_tag": "", "num_main_preds": 1, "collapsed_tag": "Object",
        }
        for number in (0, 171)
    ]  # fmt: skip
    (root / "data").mkdir(parents=True)
    (root / "data" / "examples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    touch(root / "data" / "images", [f"ex_{n}_img_{k}.png" for n in (0, 171) for k in (0, 1)])
    return root


def test_winoground(tmp_path: Path) -> None:
    manifest = made("winoground", winoground(tmp_path / "set"), tmp_path / "m")
    images = manifest.table("image").to_pylist()
    assert [row["image_id"] for row in images] == ["ex_0_img_0", "ex_0_img_1", "ex_171_img_0", "ex_171_img_1"]
    assert images[3]["attributes"] == [("group", "171")]
    assert all((manifest.image_root / row["path"]).is_file() for row in images)
    texts = rows(manifest)
    assert texts["ex_171_caption_1"] == {
        "text_id": "ex_171_caption_1",
        "text": "a young person kisses an old person",
        "image_id": "ex_171_img_1",
        "role": "caption",
        "group_id": "171",
        "split": "test",
        "attributes": [("collapsed_tag", "Object"), ("num_main_preds", "1"), ("tag", "Noun")],
    }
    path = tmp_path / "set" / "data" / "examples.jsonl"
    path.write_text(path.read_text().replace("caption_1", "caption1"))
    with pytest.raises(VlpipeError, match=f"line 1 has no caption_1.*{PUBLISHED}"):
        build("winoground", tmp_path / "set", tmp_path / "n")


def question(number: int, words: str, label: str) -> str:
    file = f"COCO_val2014_{number // 2:012}.jpg"
    return json.dumps(
        {"question_id": number, "image": file, "image_id": number // 2, "text": words, "label": label}
    )


@pytest.mark.parametrize("where", ["output/coco", "."])
def test_pope(tmp_path: Path, where: str) -> None:
    root = tmp_path / "set"
    (root / where).mkdir(parents=True)
    asked = ["Is there a dining table in the image?", "Is there an orange in the image?", "Is it day?"]
    for sampling in ("random", "popular", "adversarial"):
        lines = [question(n, text, "no" if n == 1 else "yes") for n, text in enumerate(asked)]
        (root / where / f"coco_pope_{sampling}.json").write_text("\n".join(lines) + "\n")
    touch(root / "val2014", ["COCO_val2014_000000000000.jpg", "COCO_val2014_000000000001.jpg"])
    manifest = made("pope", root, tmp_path / "m")
    assert (manifest.count("image"), manifest.count("text")) == (2, 9)
    texts = rows(manifest)
    assert texts["popular/1"] == {
        "text_id": "popular/1",
        "text": "Is there an orange in the image?",
        "image_id": "COCO_val2014_000000000000.jpg",
        "role": "prompt",
        "split": "test",
        "attributes": [("answer", "no"), ("object", "orange"), ("sampling", "popular")],
    }
    assert texts["random/0"]["attributes"][1] == ("object", "dining table")
    assert [name for name, _ in texts["random/2"]["attributes"]] == ["answer", "sampling"]
    path = root / where / "coco_pope_random.json"
    good = path.read_text()
    path.write_text(good.replace('"yes"', '"Yes"', 1))
    with pytest.raises(VlpipeError, match=f"line 1 has label 'Yes', yes or no was looked for; {PUBLISHED}"):
        build("pope", root, tmp_path / "n")
    path.write_text(good.replace('"label"', '"answer"', 1))
    with pytest.raises(VlpipeError, match=f"line 1 has no label.*{PUBLISHED}"):
        build("pope", root, tmp_path / "n")
