"""Row identity and manifest text: what is written is what is read, and nothing wrong is let in."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vlpipe.foundation.errors import StaleError, VlpipeError
from vlpipe.manifests.identity import Ids
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.writer import write_manifest

Rows = Iterable[Mapping[str, Any]]
IMAGE = {"image_id": "a", "path": "a.jpg", "split": "train", "label": "cat", "attributes": {"z": "1", "b": "2"}}
TEXT = {"text_id": "a#0", "text": "a cat", "image_id": "a", "role": "caption", "split": "train"}


def write(folder: Path, images: Rows = (IMAGE,), texts: Rows = (TEXT,), **more: Any) -> Manifest:
    described = {"name": "n", "source": "s", "licence": "l", "image_root": folder / "images"} | more
    return write_manifest(folder, images=images, texts=texts, **described)


def test_rows_come_back_as_they_were_given(tmp_path: Path) -> None:
    texts = [
        TEXT,
        {"text_id": "p", "text": "a photo of a cat", "role": "prompt"},
        {"text_id": "n", "text": "a dog", "role": "hard_negative", "source_text_id": "a#0", "group_id": "g"},
    ]
    manifest = write(tmp_path / "m", texts=texts)
    assert manifest.table("image").to_pylist() == [{**IMAGE, "attributes": [("b", "2"), ("z", "1")]}]
    found = manifest.table("text").to_pylist()
    assert [{k: v for k, v in row.items() if v not in (None, [])} for row in found] == texts
    assert (manifest.count("image"), manifest.count("text")) == (1, 3)
    assert manifest.image_root == tmp_path / "m" / "images"


def test_description(tmp_path: Path) -> None:
    manifest = write(tmp_path / "m", settings={"seed": 3})
    found = tomllib.loads((tmp_path / "m" / "manifest.toml").read_text())
    assert found["counts"] == {"images": 1, "texts": 1}
    assert found["splits"] == {"images": {"train": 1}, "texts": {"train": 1}}
    assert found["digest"] == manifest.digest
    assert found["image_root"] == "images"
    assert found["settings"] == {"seed": 3}
    for file, sha in found["files"].items():
        assert hashlib.sha256((tmp_path / "m" / file).read_bytes()).hexdigest() == sha
    names = sorted(path.name for path in (tmp_path / "m").iterdir())
    assert names == ["images.parquet", "manifest.toml", "texts.parquet"]


def test_image_root_outside_is_absolute(tmp_path: Path) -> None:
    manifest = write(tmp_path / "m", image_root=tmp_path / "photos")
    assert manifest.image_root == tmp_path / "photos"
    assert manifest.digest == write(tmp_path / "m2").digest


@pytest.mark.parametrize(("images", "texts"), [((IMAGE,), ()), ((), ({**TEXT, "image_id": None},))])
def test_one_side_may_be_empty(tmp_path: Path, images: Rows, texts: Rows) -> None:
    manifest = write(tmp_path / "m", images, texts)
    manifest.verify()
    assert {manifest.count("image"), manifest.count("text")} == {0, 1}
    assert list(manifest.batches("image" if not list(images) else "text", ["split"], 5)) == []


def test_no_rows_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(VlpipeError, match="no rows"):
        write(tmp_path / "m", (), ())
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("side", "change", "message"),
    [
        ("text", {"text": None}, r"texts row 2 \(text_id 'b#0'\): column 'text' is missing"),
        ("text", {"text": ""}, "column 'text' is blank"),
        ("text", {"text": " \n\t\u3000"}, "column 'text' is blank"),
        ("text", {"text": 2020}, r"column 'text' is 2020 \(int\); expected text"),
        ("text", {"text": float("nan")}, r"column 'text' is nan \(float\)"),
        ("text", {"text": "half \ud800 pair"}, "half of a surrogate pair .*ud800 at character 5"),
        ("text", {"text_id": None}, "texts row 2: column 'text_id' is missing"),
        ("text", {"text_id": 7}, r"'text_id' is 7 \(int\)"),
        ("text", {"split": ""}, "column 'split' is blank; leave it null"),
        ("text", {"role": "captoin"}, "did you mean 'caption'"),
        ("text", {"role": "view"}, "no text role is named 'view'"),
        ("text", {"role": "view:"}, "no text role is named 'view:'"),
        ("text", {"role": "caption:x"}, "no text role"),
        ("text", {"imageid": "a"}, "no column of texts.parquet is named 'imageid'; did you mean 'image_id'"),
        ("text", {"image_id": "c"}, r"texts row 2 \(text_id 'b#0'\): image_id 'c' is none of the 2 rows"),
        ("text", {"source_text_id": "zz"}, "source_text_id 'zz' is none of the 2 rows of texts.parquet"),
        ("text", {"text_id": "a#0"}, "texts rows 1 and 2 have the same text_id 'a#0'"),
        ("image", {"image_id": "a"}, "images rows 1 and 2 have the same image_id 'a'"),
        ("image", {"path": None}, "column 'path' is missing"),
        ("image", {"attributes": {"k": 1}}, "column 'attributes.k' is 1"),
        ("image", {"attributes": "k=1"}, "expected a table of texts"),
        ("image", {"lable": "x"}, "did you mean 'label'"),
    ],
)
def test_a_wrong_row_is_named_and_nothing_is_left(
    tmp_path: Path, side: str, change: dict[str, Any], message: str
) -> None:
    second = {"image": {"image_id": "b", "path": "b.jpg"}, "text": {**TEXT, "text_id": "b#0", "image_id": "b"}}
    second[side] |= change
    with pytest.raises(VlpipeError, match=message):
        write(tmp_path / "m", [IMAGE, second["image"]], [TEXT, second["text"]])
    assert not (tmp_path / "m").exists()


def test_known_roles_are_let_in(tmp_path: Path) -> None:
    roles = ["caption", "hard_negative", "prompt", "phrase", "view:core-only", "perturbed:Danger vis"]
    manifest = write(tmp_path / "m", texts=[{"text_id": role, "text": "x", "role": role} for role in roles])
    assert manifest.table("text")["role"].to_pylist() == roles


def test_ids_that_differ_in_a_byte_are_different(tmp_path: Path) -> None:
    ids = ["a", "A", "a ", " a", "é", "e\u0301", "a\n", "a\0", "01", "1", "1.0", "ﬁ", "fi"]
    manifest = write(tmp_path / "m", [{"image_id": name, "path": "p"} for name in ids], ())
    assert manifest.table("image")["image_id"].to_pylist() == ids


text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda value: not value.isspace())


@given(texts=st.lists(text, min_size=1, max_size=8), attributes=st.dictionaries(text, text, max_size=3))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_survives(tmp_path: Path, texts: list[str], attributes: dict[str, str]) -> None:
    rows = [{"text_id": str(n), "text": value, "role": "caption"} for n, value in enumerate(texts)]
    manifest = write(tmp_path / "m", [{**IMAGE, "attributes": attributes}], rows, overwrite=True)
    manifest.verify()
    assert manifest.table("text", ["text"])["text"].to_pylist() == texts
    assert dict(manifest.table("image")["attributes"][0].as_py()) == attributes


def test_the_same_rows_again_leave_the_tables(tmp_path: Path) -> None:
    first = write(tmp_path / "m")
    before = (tmp_path / "m" / "texts.parquet").stat().st_mtime_ns
    again = write(tmp_path / "m", licence="other")
    assert again.digest == first.digest
    assert (tmp_path / "m" / "texts.parquet").stat().st_mtime_ns == before
    assert again.description.licence == "other"


def test_other_rows_are_refused_unless_overwritten(tmp_path: Path) -> None:
    first = write(tmp_path / "m")
    with pytest.raises(VlpipeError, match=r"holds another manifest.*--overwrite"):
        write(tmp_path / "m", texts=())
    assert Manifest.open(tmp_path / "m").digest == first.digest
    assert write(tmp_path / "m", texts=(), overwrite=True).count("text") == 0
    with pytest.raises(VlpipeError, match="no rows"):
        write(tmp_path / "m", (), (), overwrite=True)
    assert Manifest.open(tmp_path / "m").count("image") == 1
    assert len(list((tmp_path / "m").iterdir())) == 3


def test_overwrite_mends_an_edited_manifest(tmp_path: Path) -> None:
    write(tmp_path / "m")
    (tmp_path / "m" / "texts.parquet").write_bytes(b"")
    with pytest.raises(StaleError):
        write(tmp_path / "m")
    write(tmp_path / "m", overwrite=True).verify()


def test_stopped_while_it_replaces_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the tables and the description there is no manifest, rather than one of both."""
    write(tmp_path / "m")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("vlpipe.manifests.writer.write_atomic", stop)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "m", texts=(), overwrite=True)
    with pytest.raises(VlpipeError, match=r"has no manifest\.toml"):
        Manifest.open(tmp_path / "m")
    assert write(tmp_path / "m").count("text") == 1


@given(names=st.lists(st.one_of(st.none(), st.sampled_from("abcdefgh"), text), max_size=12))
def test_repeated_against_a_loop(names: list[str | None]) -> None:
    ids = Ids()
    ids.extend(name for name in names if name is not None)
    seen: dict[str, int] = {}
    expected = None
    for row, name in enumerate(name for name in names if name is not None):
        if name in seen and expected is None:
            expected = seen[name], row
        seen.setdefault(name, row)
    assert ids.repeated() == expected


@given(names=st.lists(st.one_of(st.none(), st.sampled_from("abcd"))), known=st.sets(st.sampled_from("abcd")))
def test_missing_against_a_loop(names: list[str | None], known: set[str]) -> None:
    mine, theirs = Ids(), Ids()
    mine.extend(names)
    theirs.extend(sorted(known))
    expected = next((row for row, name in enumerate(names) if name is not None and name not in known), None)
    assert mine.missing_in(theirs) == expected
