"""Class prompts: the published templates, one row a class and template, and other words from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.prompts import imagenet_class_names, prompt_rows, readable, templates_of


def test_the_published_templates() -> None:
    imagenet, simple = templates_of("imagenet"), templates_of("simple")
    assert (len(imagenet), len(simple), len(templates_of("generic"))) == (80, 7, 8)
    assert (imagenet[0], imagenet[-1]) == ("a bad photo of a {}.", "a tattoo of the {}.")
    assert simple[0] == "itap of a {}."
    assert set(simple) < set(imagenet)
    assert templates_of("generic") == ["a photo of a {}.", *simple]
    assert all(template.count("{}") == 1 for template in imagenet)
    assert templates_of("none") == []
    assert templates_of(["one {}"]) == ["one {}"]


def test_imagenets_names() -> None:
    names = imagenet_class_names()
    assert (len(names), names[0], names[1], names[999]) == (1000, "tench", "goldfish", "toilet paper")
    assert {name for name in names if names.count(name) > 1} == {"missile", "sunglasses"}


@pytest.mark.parametrize(
    ("templates", "what"),
    [(["a photo"], "has 0 places"), (["{} and {}"], "has 2 places"), (["{}", "{}"], "stands twice")],
)
def test_own_templates_need_one_place_for_the_class(templates: list[str], what: str) -> None:
    with pytest.raises(VlpipeError, match=what):
        templates_of(templates)


def test_rows_are_class_by_class() -> None:
    rows = list(prompt_rows({"n01": "tench", "n02": "a {} b"}, ["a {}.", "the {}."]))
    assert [row["text"] for row in rows] == ["a tench.", "the tench.", "a a {} b.", "the a {} b."]
    assert [row["text_id"] for row in rows] == ["prompt:n01#0", "prompt:n01#1", "prompt:n02#0", "prompt:n02#1"]
    assert rows[1]["attributes"] == {"label": "n01", "class": "tench", "template": "the {}."}
    assert {row["role"] for row in rows} == {"prompt"}


@pytest.mark.parametrize(
    ("label", "words"), [("golden_retriever", "golden retriever"), ("cat", "cat"), ("__", "__"), (" a_ b", "a b")]
)
def test_folder_names_as_words(label: str, words: str) -> None:
    assert readable(label) == words


def folders(root: Path, names: tuple[str, ...] = ("train/cat", "train/big_dog", "val/cat")) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
        Image.new("RGB", (4, 4), "red").save(root / name / "1.png")
    return root


def prompts(manifest: Manifest) -> list[tuple[str, str]]:
    found = manifest.table("text").to_pylist()
    return [(dict(row["attributes"])["label"], row["text"]) for row in found if row["role"] == "prompt"]


@pytest.mark.parametrize("form", ["json", "csv", "tsv", "jsonl"])
def test_words_and_superclasses_from_files(tmp_path: Path, form: str) -> None:
    root = folders(tmp_path / "set")
    words, above = {"big_dog": "great dane", "owl": "owl"}, {"big_dog": "canine", "cat": "feline", "owl": "bird"}
    for name, column, table in (("w", "name", words), ("s", "superclass", above)):
        if form == "json":
            text = json.dumps(table)
        elif form == "jsonl":
            text = "".join(json.dumps({"label": k, column: v, "more": 1}) + "\n" for k, v in table.items())
        else:
            rows = [("label", column), *table.items()]
            text = "".join(({"csv": ",", "tsv": "\t"}[form]).join(row) + "\n" for row in rows)
        (tmp_path / f"{name}.{form}").write_text(text)
    settings = {
        "templates": ["a {}"],
        "classes": str(tmp_path / f"w.{form}"),
        "superclasses": str(tmp_path / f"s.{form}"),
    }
    manifest = build("image_folder", root, tmp_path / "m", settings)
    assert prompts(manifest) == [("big_dog", "a great dane"), ("cat", "a cat")]
    rows = manifest.table("image").to_pylist()
    assert [(row["label"], dict(row["attributes"])) for row in rows] == [
        ("big_dog", {"class": "great dane", "superclass": "canine"}),
        ("cat", {"class": "cat", "superclass": "feline"}),
        ("cat", {"class": "cat", "superclass": "feline"}),
    ]


@pytest.mark.parametrize(
    ("setting", "name", "text", "what"),
    [
        ("superclasses", "s.json", '{"cat": "feline"}', r"no superclass for 1 of 2 labels: big_dog"),
        ("superclasses", "s.json", '{"cat": 1}', r"label 'cat' has superclass 1; expected the columns label"),
        ("superclasses", "s.json", '["cat"]', "is no JSON object"),
        ("superclasses", "s.json", "{", "is not JSON"),
        ("superclasses", "s.json", '{"cat": "a", "cat": "b"}', "label 'cat' stands twice"),
        ("superclasses", "s.csv", "label,coarse\ncat,feline\n", "label 'cat' has superclass None"),
        ("superclasses", "s.csv", "label,superclass\ncat,a\ncat,b\n", "stands twice"),
        ("classes", "s.json", '{"dog": "a dog"}', r"names none of the 2 labels \(big_dog, cat\), but dog"),
    ],
)
def test_wrong_files_of_labels(tmp_path: Path, setting: str, name: str, text: str, what: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(VlpipeError, match=what):
        build("image_folder", folders(tmp_path / "set"), tmp_path / "m", {setting: str(tmp_path / name)})
    with pytest.raises(VlpipeError, match="does not exist"):
        build("image_folder", tmp_path / "set", tmp_path / "m", {setting: str(tmp_path / "no.json")})


def test_a_wrong_choice_of_templates_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="templates"):
        build("image_folder", folders(tmp_path / "set"), tmp_path / "m", {"templates": "openai"})
    with pytest.raises(UsageError, match="templates"):
        build("image_folder", tmp_path / "set", tmp_path / "m", {"templates": []})
