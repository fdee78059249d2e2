"""Tables from outside: CSV, JSON lines and Parquet of the same content make the same manifest."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError
from vlpipe.manifests.build import build_from_tables
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.tables import parse_renames

COLUMNS = ["image", "caption", "split"]
ODD = [
    ["a/x.jpg", 'commas, "quotes"\nand a line break', "train"],
    ["a/x.jpg", "carriage\r\nreturn", "train"],
    ["b/x.jpg", "nan", "train"],
    ["c/x.JPG", "2020", "test"],
    ["d/x.jpg", "null", ""],
    ["d/x.jpg", " spaces kept ", ""],
    ["e ", "NA", "None"],
    ["f", "e\u0301 is not é", "test"],
    ["g", "line\u2028separator, \x85, \x0b and \ufeff", "test"],
    ["h", "'single'; tab\t.", "test"],
]


def write_csv(
    path: Path, rows: Sequence[Sequence[str]], columns: Sequence[str] = COLUMNS, bom: bool = False
) -> Path:
    with path.open("w", encoding="utf-8-sig" if bom else "utf-8", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([columns, *rows])
    return path


def write_jsonl(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def records_of(rows: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def one(table: Path, out: Path, *columns: str, **more: Any) -> Manifest:
    return build_from_tables(table, table, out, renames=parse_renames(columns), **more)[0]


def texts(manifest: Manifest) -> list[str]:
    return [str(value) for value in manifest.table("text")["text"].to_pylist()]


@pytest.mark.parametrize("bom", [False, True])
@pytest.mark.parametrize("suffix", ["csv", "tsv", "CSV"])
def test_odd_texts_are_the_same_in_every_format(tmp_path: Path, suffix: str, bom: bool) -> None:
    made = one(write_csv(tmp_path / f"t.{suffix}", ODD, bom=bom), tmp_path / "csv")
    lines = one(write_jsonl(tmp_path / "t.jsonl", records_of(ODD)), tmp_path / "jsonl")
    pq.write_table(pa.Table.from_pylist(records_of(ODD)), tmp_path / "t.parquet")
    parquet = one(tmp_path / "t.parquet", tmp_path / "parquet")
    assert texts(made) == [row[1] for row in ODD]
    assert made.digest == lines.digest == parquet.digest
    assert made.table("text").to_pylist()[4]["split"] is None


def test_ids_and_order_are_the_tables(tmp_path: Path) -> None:
    made = one(write_csv(tmp_path / "t.csv", ODD), tmp_path / "m")
    paths = list(dict.fromkeys(row[0] for row in ODD))
    assert made.table("image")["image_id"].to_pylist() == paths
    assert made.table("image")["path"].to_pylist() == paths
    assert made.table("text")["text_id"].to_pylist()[:6] == [
        *("a/x.jpg#0", "a/x.jpg#1", "b/x.jpg#0", "c/x.JPG#0", "d/x.jpg#0", "d/x.jpg#1")
    ]
    assert made.table("text")["image_id"].to_pylist() == [row[0] for row in ODD]


value = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda v: not v.isspace()
)


@given(rows=st.lists(st.tuples(st.sampled_from(["a.jpg", "ü b.jpg"]), value, st.just("train")), min_size=1))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_the_same_from_csv_and_json_lines(tmp_path: Path, rows: list[tuple[str, str, str]]) -> None:
    made = one(write_csv(tmp_path / "t.csv", rows), tmp_path / "csv", overwrite=True)
    lines = one(write_jsonl(tmp_path / "t.jsonl", records_of(rows)), tmp_path / "jsonl", overwrite=True)
    assert texts(made) == [row[1] for row in rows]
    assert made.digest == lines.digest


def test_lists_of_captions(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "t.jsonl", [{"image": "a", "captions": ["x", "y"]}, {"image": "b", "captions": ["x"]}]
    )
    made = one(path, tmp_path / "m")
    assert made.table("text")["text_id"].to_pylist() == ["a#0", "a#1", "b#0"]
    flat = write_csv(tmp_path / "t.csv", [["a", "x"], ["a", "y"], ["b", "x"]], ["image", "caption"])
    assert one(flat, tmp_path / "flat").digest == made.digest


def test_numbers_are_their_letters(tmp_path: Path) -> None:
    words = ["2020", "2020.0", "1e3", "007", "123456789012345678901234567890"]
    (tmp_path / "t.jsonl").write_text(
        "".join(
            f'{{"image": {n}, "text": {word if word != "007" else chr(34) + word + chr(34)}}}\n'
            for n, word in enumerate(words)
        )
    )
    made = one(tmp_path / "t.jsonl", tmp_path / "m")
    assert texts(made) == words
    assert made.table("image")["image_id"].to_pylist() == ["0", "1", "2", "3", "4"]
    assert one(
        write_csv(tmp_path / "t.csv", list(enumerate(words)), ["image", "text"]), tmp_path / "c"
    ).digest == (made.digest)
    pq.write_table(pa.table({"image": [0, 1], "text": [2020, 7]}), tmp_path / "t.parquet")
    assert texts(one(tmp_path / "t.parquet", tmp_path / "p")) == ["2020", "7"]


@pytest.mark.parametrize("column", [{"image": [1.0]}, {"text": [2020.0]}, {"text": [float("nan")]}])
def test_fractions_in_parquet_are_refused(tmp_path: Path, column: dict[str, list[float]]) -> None:
    pq.write_table(pa.table({"image": ["a"], "text": ["x"]} | column), tmp_path / "t.parquet")
    with pytest.raises(VlpipeError, match=r"line 1: \w+ is .*a number with a fraction"):
        one(tmp_path / "t.parquet", tmp_path / "m")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"image": "a", "text": true}', r"line 2: text is True \(bool\)"),
        ('{"image": "a", "text": {"en": "x"}}', "line 2: text is .*dict"),
        ('{"image": "a", "text": [["x"]]}', "line 2: text is .*list"),
        ('{"image": "a", "text": NaN}', "line 2: NaN is not JSON"),
        ('{"image": "a", "image": "b", "text": "x"}', "line 2: the key 'image' stands twice"),
        ('{"image": "a", "text": "x"', "line 2: .*expected one JSON object a line"),
        ('["a", "x"]', "line 2 is .*expected one JSON object a line"),
        ('{"image": "a", "text": "\\ud800"}', "half of a surrogate pair"),
        ('{"image": null, "text": "x"}', "line 2: path is absent"),
        (
            '{"image": "a", "text": "x", "split": "test"}',
            r"line 2: image 'a' has split 'test'.*line 1 it has None",
        ),
        ('{"image": "b", "text": ["x", "y"], "text_id": "t"}', "line 2: one text_id for 2 texts"),
    ],
)
def test_wrong_json_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "t.jsonl").write_text('{"image": "a", "text": "fine"}\n' + line + "\n")
    with pytest.raises(VlpipeError, match=message):
        one(tmp_path / "t.jsonl", tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"image,text\na,b\nc,d,e\n", "line 3 has 3 fields, the header 2"),
        (b'image,text\na,"two\nlines"\nc\n', "line 4 has 1 fields"),
        (b"image,text\na,caf\xe9\n", r"line 2: byte 6 \(0xe9\) is not UTF-8"),
        ("image,text\na,b\n".encode("utf-16"), r"line 1: byte 1 \(0xff\) is not UTF-8"),
        (b'image,text\na,"open\nb,c\n', r"line 2: unexpected end of data"),
        (b'image,text\na,"x" y\n', "line 2: "),
        (b"image,text,image\na,b,c\n", "line 1 names column 'image' twice"),
        (b"image,text\n", "no rows"),
        (b"", "no rows"),
        (b"\nimage,text\na,b\n", "line 1 is empty; expected the column names"),
        (b"image,txet\na,b\n", r"no column for text \(looked for text, caption, captions\); did you mean 'txet'"),
        (
            b"photo,text\na,b\n",
            r"no column for path .*its columns: photo, text; name one with --column path=COLUMN",
        ),
    ],
)
def test_wrong_csv_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(VlpipeError, match=message):
        one(tmp_path / "t.csv", tmp_path / "m")
    assert not (tmp_path / "m").exists()


BLANK: list[dict[str, Any]] = [
    {"image": "a", "text": "x"},
    {"image": "a", "text": ""},
    {"image": "b", "text": None},
    {"image": "c"},
    {"image": "d", "text": " \t"},
    {"image": "d", "text": "y"},
]


def test_absent_texts_are_an_error_that_names_them(tmp_path: Path) -> None:
    lines = write_jsonl(tmp_path / "t.jsonl", BLANK)
    table = write_csv(tmp_path / "t.csv", [[r["image"], r.get("text") or ""] for r in BLANK], ["image", "text"])
    with pytest.raises(VlpipeError, match=r"blank: .*line 2, .*line 3, .*line 4, .*line 5; .*--drop-blank"):
        one(lines, tmp_path / "m")
    with pytest.raises(VlpipeError, match=r"line 3, .*line 4, .*line 5, .*line 6; "):
        one(table, tmp_path / "m")


def test_absent_texts_are_left_out_and_counted(tmp_path: Path) -> None:
    lines = write_jsonl(tmp_path / "t.jsonl", BLANK)
    made, notes = build_from_tables(lines, lines, tmp_path / "m", renames={}, drop_blank=True)
    assert notes == ["4 blank texts were left out"]
    assert made.table("text")["text_id"].to_pylist() == ["a#0", "d#1"]
    assert made.table("image")["image_id"].to_pylist() == ["a", "b", "c", "d"]
    table = write_csv(tmp_path / "t.csv", [[r["image"], r.get("text") or ""] for r in BLANK], ["image", "text"])
    assert one(table, tmp_path / "c", drop_blank=True).digest == made.digest


def test_two_tables(tmp_path: Path) -> None:
    images = write_csv(
        tmp_path / "i.csv", [["1", "one.jpg", "cat"], ["2", "two.jpg", "dog"]], ["image_id", "path", "label"]
    )
    words = write_jsonl(tmp_path / "t.jsonl", [
        {"text_id": "p", "text": "a photo", "role": "prompt"},
        {"text_id": "c", "text": "a dog", "image_id": 2},
        {"text_id": "n", "text": "a cat", "image_id": 2, "role": "hard_negative", "source_text_id": "c"},
        {"text": "no id"},
    ])  # fmt: skip
    made, notes = build_from_tables(images, words, tmp_path / "m", renames={})
    assert notes == []
    assert made.table("image")["label"].to_pylist() == ["cat", "dog"]
    found = made.table("text")
    assert found["role"].to_pylist() == ["prompt", "caption", "hard_negative", "caption"]
    assert found["text_id"].to_pylist() == ["p", "c", "n", "1"]
    assert found["image_id"].to_pylist() == [None, "2", "2", None]
    with pytest.raises(VlpipeError, match="image_id '2' is none of the 0 rows"):
        build_from_tables(None, words, tmp_path / "x", renames={})
    only, _ = build_from_tables(images, None, tmp_path / "y", renames={})
    assert (only.count("image"), only.count("text")) == (2, 0)


def test_duplicate_images_in_a_table_of_images(tmp_path: Path) -> None:
    images = write_csv(tmp_path / "i.csv", [["a.jpg"], ["b.jpg"], ["a.jpg"]], ["path"])
    with pytest.raises(VlpipeError, match=r"images rows 1 and 3 have the same image_id 'a\.jpg'"):
        build_from_tables(images, None, tmp_path / "m", renames={})


def test_attributes_of_json_and_parquet(tmp_path: Path) -> None:
    records = [{"image": "a", "text": "x", "attributes": {"k": "v", "n": 3}}]
    made = one(write_jsonl(tmp_path / "t.jsonl", records), tmp_path / "m")
    assert made.table("image")["attributes"].to_pylist() == [[("k", "v"), ("n", "3")]]
    kind = pa.map_(pa.string(), pa.string())
    column = pa.array([[("n", "3"), ("k", "v")]], kind)
    pq.write_table(pa.table({"image": ["a"], "text": ["x"], "attributes": column}), tmp_path / "t.parquet")
    assert one(tmp_path / "t.parquet", tmp_path / "p").digest == made.digest


def test_renames(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", [["a.jpg", "x", "7"]], ["photo", "sentence", "width"])
    made, notes = build_from_tables(
        path, path, tmp_path / "m", renames=parse_renames(["path=photo", "text=sentence"])
    )
    assert made.table("text")["text_id"].to_pylist() == ["a.jpg#0"]
    assert notes == [f"columns of '{path}' that were not read: width"]
    with pytest.raises(UnknownNameError, match=r"no column of '.*' is named 'sentense'; did you mean 'sentence'"):
        one(path, tmp_path / "x", "path=photo", "text=sentense")
    with pytest.raises(UnknownNameError, match="no column of the table is named 'fold'"):
        one(path, tmp_path / "x", "path=photo", "text=sentence", "split=fold")
    with pytest.raises(UnknownNameError, match="did you mean 'split'"):
        parse_renames(["splt=fold"])
    with pytest.raises(UsageError, match="expected NAME=COLUMN"):
        parse_renames(["text"])


def test_a_column_that_only_later_records_have_is_read(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "t.jsonl", [{"image": "a", "text": "x"}, {"image": "b", "text": "y", "split": "test"}]
    )
    assert one(path, tmp_path / "m").table("image")["split"].to_pylist() == [None, "test"]


@pytest.mark.parametrize(("name", "message"), [("t.xlsx", "ends in '.xlsx'"), ("none.csv", "does not exist")])
def test_files_that_are_no_tables(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(VlpipeError, match=message):
        one(tmp_path / name, tmp_path / "m")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(VlpipeError, match="not a Parquet table"):
        one(tmp_path / "t.parquet", tmp_path / "m")
