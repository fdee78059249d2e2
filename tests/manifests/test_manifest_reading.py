"""The digest is the rows and nothing else; reading gives every row once, in order, in flat memory."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlpipe.foundation.errors import StaleError, UnknownNameError, VlpipeError
from vlpipe.foundation.files import canonical_json
from vlpipe.manifests.digest import TableDigest, manifest_digest
from vlpipe.manifests.manifest import Manifest, regroup
from vlpipe.manifests.schema import IMAGES, TABLES, TEXTS
from vlpipe.manifests.writer import write_manifest

Rows = Iterable[Mapping[str, Any]]
IMAGE = {"image_id": "a", "path": "a.jpg", "split": "train", "label": "cat", "attributes": {"z": "1", "b": "2"}}
TEXT = {"text_id": "a#0", "text": "a cat", "image_id": "a", "role": "caption", "split": "train"}


def write(folder: Path, images: Rows = (IMAGE,), texts: Rows = (TEXT,), **more: Any) -> Manifest:
    described = {"name": "n", "source": "s", "licence": "l", "image_root": folder / "images"} | more
    return write_manifest(folder, images=images, texts=texts, **described)


def test_digest_is_what_its_description_says(tmp_path: Path) -> None:
    """An independent computation from the rows as Python values."""
    rows = [{"image_id": i, "path": p, "label": la} for i, p, la in [("a", "ä.jpg", None), ("b", "b", "x")]]
    rows[1]["attributes"] = {"k": "v", "c": ""}

    def column(values: list[str | None]) -> list[str]:
        lengths = b"".join(np.int64(-1 if v is None else len(v.encode())).tobytes() for v in values)
        return [hashlib.sha256(part).hexdigest() for part in (lengths, "".join(v or "" for v in values).encode())]

    counts = hashlib.sha256(np.array([0, 2], "<i8").tobytes()).hexdigest()
    images = {
        "image_id": column(["a", "b"]),
        "path": column(["ä.jpg", "b"]),
        "split": column([None, None]),
        "label": column([None, "x"]),
        "attributes": [counts, *column(["c", "k"]), *column(["", "v"])],
    }
    texts = {name: column([]) for name in TEXTS.schema.names if name != "attributes"}
    texts["attributes"] = [hashlib.sha256().hexdigest()] * 5
    data = {"format": 1, "tables": {"images": images, "texts": texts}}
    expected = hashlib.sha256(canonical_json(data).encode()).hexdigest()
    assert write(tmp_path / "m", rows, ()).digest == expected


CHANGES: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([IMAGE | {"label": None}], [TEXT]),
    ([IMAGE | {"path": "A.jpg"}], [TEXT]),
    ([IMAGE | {"attributes": {"z": "1", "b": "3"}}], [TEXT]),
    ([IMAGE | {"attributes": {}}], [TEXT]),
    ([IMAGE], [TEXT | {"text": "a cat "}]),
    ([IMAGE], [TEXT | {"image_id": None}]),
    ([IMAGE], [TEXT | {"split": None, "group_id": "train"}]),
    ([IMAGE], [TEXT, TEXT | {"text_id": "x"}]),
    ([IMAGE], [TEXT | {"text_id": "x"}, TEXT]),
    ([IMAGE], [TEXT | {"text_id": "a#", "text": "0a cat"}]),
    ([IMAGE, {"image_id": "b", "path": "b"}], [TEXT]),
]


def test_every_change_of_value_or_order_changes_the_digest(tmp_path: Path) -> None:
    digests = [write(tmp_path / str(n), *change).digest for n, change in enumerate(CHANGES)]
    assert len({*digests, write(tmp_path / "m").digest}) == len(CHANGES) + 1


def many(rows: int) -> tuple[Rows, Rows]:
    images = ({"image_id": f"i{n}", "path": f"{n}.jpg", "attributes": {"n": str(n)}} for n in range(rows))
    texts = (
        {"text_id": f"t{n}", "text": f"text {n}", "image_id": f"i{n}", "role": "caption"} for n in range(rows)
    )
    return images, texts


def test_digest_depends_neither_on_row_groups_nor_on_the_place(tmp_path: Path) -> None:
    manifest = write(tmp_path / "m", *many(1000))
    for size in (7, 1000):
        digests = {}
        for side, table in list(TABLES.items())[:2]:
            pq.write_table(
                manifest.table(side), tmp_path / "again.parquet", row_group_size=size, compression="none"
            )
            digests[table.name] = TableDigest(table)
            for batch in pq.ParquetFile(tmp_path / "again.parquet").iter_batches(13):
                digests[table.name].update(batch)
        assert manifest_digest(digests) == manifest.digest
    shutil.move(tmp_path / "m", tmp_path / "split=x")
    moved = Manifest.open(tmp_path / "split=x")
    moved.verify()
    assert moved.image_root == tmp_path / "split=x" / "images"
    assert moved.table("image").schema.names == IMAGES.schema.names  # no column from the folder's name


def test_batches_are_exact_and_in_order(tmp_path: Path) -> None:
    manifest = write(tmp_path / "m", *many(200_000))
    for rows in (512, 7_001, 30_000, 250_000):
        batches = list(manifest.batches("text", ["text_id", "text"], rows))
        sizes = [len(batch) for batch in batches]
        assert sizes == [rows] * (200_000 // rows) + [200_000 % rows] * (200_000 % rows > 0)
        assert batches[0].schema.names == ["text_id", "text"]
    ids = [name for batch in manifest.batches("text", ["text_id"], 7_001) for name in batch[0].to_pylist()]
    assert ids == [f"t{n}" for n in range(200_000)]


@given(sizes=st.lists(st.integers(0, 9), max_size=9), rows=st.integers(1, 12))
def test_regroup_keeps_rows(sizes: list[int], rows: int) -> None:
    import pyarrow as pa

    values = np.arange(sum(sizes))
    parts = [pa.record_batch({"v": part}) for part in np.split(values, np.cumsum(sizes)[:-1])] if sizes else []
    out = list(regroup(parts, rows))
    assert [len(batch) for batch in out[:-1]] == [rows] * (len(out) - 1)
    assert [v for batch in out for v in batch[0].to_pylist()] == values.tolist()


def test_opening_what_is_not_whole(tmp_path: Path) -> None:
    with pytest.raises(VlpipeError, match="does not exist; vlpipe manifest build"):
        Manifest.open(tmp_path / "m")
    write(tmp_path / "m")
    (tmp_path / "m" / "texts.parquet").rename(tmp_path / "t")
    with pytest.raises(VlpipeError, match=r"has no texts\.parquet"):
        Manifest.open(tmp_path / "m")
    data = bytearray((tmp_path / "t").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "m" / "texts.parquet").write_bytes(data)
    with pytest.raises(StaleError, match=r"texts\.parquet.*changed afterwards"):
        Manifest.open(tmp_path / "m")


def test_opening_a_wrong_description(tmp_path: Path) -> None:
    write(tmp_path / "m")
    path = tmp_path / "m" / "manifest.toml"
    good = path.read_text()
    path.write_text(good.replace("format = 1", "format = 2"))
    with pytest.raises(VlpipeError, match="format 2"):
        Manifest.open(tmp_path / "m")
    path.write_text(good.replace("images = 1", 'images = "1"'))
    with pytest.raises(VlpipeError, match=r"counts\.images"):
        Manifest.open(tmp_path / "m")
    path.write_text(good.replace('digest = "', 'digest = "0'))
    with pytest.raises(StaleError, match="the rows have digest"):
        Manifest.open(tmp_path / "m").verify()
    path.unlink()
    with pytest.raises(VlpipeError, match=r"has no manifest\.toml"):
        Manifest.open(tmp_path / "m")


def test_unknown_column(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'text_id'"):
        write(tmp_path / "m").table("text", ["textid"])


@pytest.mark.soak
def test_two_million_rows_in_flat_memory(tmp_path: Path) -> None:
    """The peak grows by what the ids cost (16 bytes an id or reference and 16 a sorted id), not by the rows."""
    import subprocess
    import sys

    program = """
import json, resource, sys
from pathlib import Path
from vlpipe.manifests.writer import write_manifest
rows = int(sys.argv[2])
manifest = write_manifest(
    Path(sys.argv[1]), name="n", source="s", licence="l", image_root=Path(sys.argv[1]),
    images=({"image_id": f"i{n}", "path": f"{n}.jpg"} for n in range(rows)),
    texts=({"text_id": f"t{n}", "text": f"caption {n} " * 9, "image_id": f"i{n}", "role": "caption"}
           for n in range(rows)))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
manifest.verify()
read = sum(len(batch) for batch in manifest.batches("text", ["text_id", "text"], 5000))
print(json.dumps([peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, read]))
"""
    peaks = {}
    for rows in (100_000, 2_000_000):
        command = [sys.executable, "-c", program, str(tmp_path / str(rows)), str(rows)]
        peak, after, read = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        assert read == rows
        assert after - peak < 64 << 20
        peaks[rows] = peak
    assert peaks[2_000_000] - peaks[100_000] < 1_900_000 * 96 * 1.25 + (64 << 20)
