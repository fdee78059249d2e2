"""COCO's object queries: names in captions, and the boxes of what they name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.check import check
from vlpipe.manifests.coco_names import ALIASES, names_of
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.mentions import Mentions, plural

PUBLISHED = r"expected .*published at https://"


def made(root: Path, out: Path, **settings: Any) -> Manifest:
    manifest = build("coco_objects", root, out, settings)
    manifest.verify()
    assert check(manifest, every_image=True).errors == []
    return manifest


def test_mentions_are_whole_words_and_the_longest_name_wins() -> None:
    mentions = Mentions(
        names_of(["dog", "hot dog", "person", "bear", "teddy bear", "bus", "knife", "sheep", "cat"])
    )

    def found(text: str) -> list[tuple[str, str]]:
        return [(mention.thing, mention.words) for mention in mentions.find(text)]

    assert found("A MAN eats hot  dogs beside his dog") == [
        ("person", "MAN"),
        ("hot dog", "hot  dogs"),
        ("dog", "dog"),
    ]
    assert found("teddy bears, a bear and catalogues") == [("teddy bear", "teddy bears"), ("bear", "bear")]
    assert found("buses, knives, two sheep and women.") == [
        ("bus", "buses"),
        ("knife", "knives"),
        ("sheep", "sheep"),
        ("person", "women"),
    ]
    assert found("a dog-house, a bulldog and a doggy") == []
    assert [plural(word) for word in ("box", "puppy", "toy", "couch", "wine glass")] == [
        "boxes",
        "puppies",
        "toys",
        "couches",
        "wine glasses",
    ]
    twice = Mentions({"a": ["crane"], "b": ["crane"]})
    assert [mention.thing for mention in twice.find("cranes")] == ["a", "b"]


def objects(root: Path) -> Path:
    images = [{"id": n, "file_name": f"{n:012}.jpg", "width": 60, "height": 40} for n in (5, 6, 7)]
    captions = [
        (5, 50, "Two people and a dog"),
        (5, 51, "A man on his bike"),
        (6, 60, "A dog sleeps"),
        (7, 70, "A cat"),
    ]
    boxes = [
        (5, 1, [1.5, 2, 10, 20], 0), (5, 1, [30, 2, 5, 5], 0), (5, 2, [0, 0, 60, 40], 0), (5, 1, [0, 0, 9, 9], 1),
        (6, 1, [0, 0, 3, 3], 0), (7, 17, [1, 2, 3, 4], 1),
    ]  # fmt: skip
    categories = {1: "person", 2: "bicycle", 17: "cat", 18: "dog"}
    (root / "annotations").mkdir(parents=True)
    (root / "annotations" / "captions_val2017.json").write_text(
        json.dumps(
            {
                "images": images,
                "annotations": [{"image_id": i, "id": k, "caption": text} for i, k, text in captions],
            }
        )
    )
    (root / "annotations" / "instances_val2017.json").write_text(
        json.dumps(
            {
                "images": images,
                "annotations": [
                    {"id": k, "image_id": i, "category_id": c, "bbox": box, "iscrowd": crowd}
                    for k, (i, c, box, crowd) in enumerate(boxes)
                ],
                "categories": [{"id": k, "name": name, "supercategory": "x"} for k, name in categories.items()],
            }
        )
    )
    for number in (5, 6, 7):
        (root / "val2017").mkdir(exist_ok=True)
        Image.new("RGB", (60, 40), "grey").save(root / "val2017" / f"{number:012}.jpg")
    return root


def test_object_queries(tmp_path: Path) -> None:
    """A dog is named and not boxed; a person is boxed in photo 6 and not named; the cat's box is a crowd's."""
    manifest = made(objects(tmp_path / "set"), tmp_path / "m")
    assert manifest.table("image").to_pylist()[0]["image_id"] == "000000000005.jpg"
    assert manifest.count("image") == 1
    texts = {row["text_id"]: row for row in manifest.table("text").to_pylist()}
    assert list(texts) == ["50", "51", "000000000005.jpg/person", "000000000005.jpg/bicycle"]
    bicycle = texts["000000000005.jpg/bicycle"]
    assert (bicycle["text"], bicycle["role"], bicycle["source_text_id"]) == ("bicycle", "phrase", "51")
    assert dict(bicycle["attributes"]) == {"category": "bicycle", "mention": "bike"}
    regions = {row["text_id"]: row["boxes"] for row in manifest.table("region").to_pylist()}
    assert regions["000000000005.jpg/person"] == [[1.5, 2, 11.5, 22], [30, 2, 35, 7]]
    more = made(tmp_path / "set", tmp_path / "n", crowds=True, query="mention")
    assert [row["text"] for row in more.table("text").to_pylist() if row["role"] == "phrase"] == [
        "people",
        "bike",
        "cat",
    ]
    assert len(more.table("region")["boxes"][0].as_py()) == 3


def test_object_queries_in_wrong_forms(tmp_path: Path) -> None:
    path = objects(tmp_path / "set") / "annotations" / "instances_val2017.json"
    good = path.read_text()
    for old, new, message in [
        (
            '"bbox": [1.5, 2, 10, 20]',
            '"bbox": [1.5, 2, 10]',
            r"annotations\[0\] has bbox \[1\.5, 2, 10\]; four numbers",
        ),
        ('"bbox"', '"box"', r"annotations\[0\] has no bbox"),
        ('"category_id": 2,', '"category_id": 99,', "has category_id 99, which is none of the categories"),
        ('"categories"', '"classes"', "has no categories, a list"),
    ]:
        path.write_text(good.replace(old, new))
        with pytest.raises(VlpipeError, match=f"{message}.*{PUBLISHED}"):
            build("coco_objects", tmp_path / "set", tmp_path / "m")
    path.unlink()
    with pytest.raises(VlpipeError, match=rf"has no annotations/instances_val2017\.json .*{PUBLISHED}"):
        build("coco_objects", tmp_path / "set", tmp_path / "m")


def test_queries_on_the_real_photos(shared: Path, tmp_path: Path) -> None:
    real = shared / "data" / "coco_sugarcrepe"
    root = tmp_path / "set"
    (root / "annotations").mkdir(parents=True)
    (root / "val2017").symlink_to(real / "images")
    for name in ("captions", "instances"):
        (root / "annotations" / f"{name}_val2017.json").symlink_to(real / f"{name}.json")
    manifest = made(root, tmp_path / "m")
    data = json.loads((real / "instances.json").read_text())
    names = {entry["id"]: entry["name"] for entry in data["categories"]}
    assert set(ALIASES) <= set(names.values())
    files = {entry["id"]: entry["file_name"] for entry in data["images"]}
    expected: dict[str, list[list[float]]] = {}
    for entry in data["annotations"]:
        x, y, w, h = entry["bbox"]
        if not entry["iscrowd"]:
            name = f"{files[entry['image_id']]}/{names[entry['category_id']]}"
            expected.setdefault(name, []).append([x, y, x + w, y + h])
    found = {row["region_id"]: row["boxes"] for row in manifest.table("region").to_pylist()}
    assert {name: expected[name] for name in found} == found
    assert len(found) == 80  # looked at one by one: two name what is said not to be there ("no toilets")
