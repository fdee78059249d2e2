"""`vlpipe cache export`: the same rows in other formats, read back by those formats' own libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.numpy import load_file

from vlpipe.cache_store import export as module
from vlpipe.cache_store.commands import export
from vlpipe.cache_store.errors import CorruptCacheError, NotCachedError, RowsError
from vlpipe.cache_store.export import export_features
from vlpipe.cache_store.layout import ArraySpec
from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError

KEPT = [row for row in range(37) if row != 9]  # row 9 of the sample has failed
Read = tuple[np.ndarray, list[str], dict[str, Any]]


def read_safetensors(path: Path, output: str) -> Read:
    (name, values), *rest = load_file(path).items()
    assert (name, rest) == (output, [])
    with safe_open(path, "np") as file:
        about = file.metadata()
    return values, json.loads(about["ids"]), json.loads(about["vlpipe"])


def read_npz(path: Path, _: str) -> Read:
    with np.load(path, allow_pickle=False) as file:
        assert sorted(file.files) == ["features", "ids", "status", "vlpipe"]
        assert file["status"].tolist() == [3 if row == 20 else 1 for row in KEPT]
        return file["features"], file["ids"].tolist(), json.loads(str(file["vlpipe"]))


def read_parquet(path: Path, _: str) -> Read:
    table = pq.ParquetFile(path).read()
    about = json.loads(table.schema.metadata[b"vlpipe"])
    assert table.column_names == ["id", "status", "feature"]
    assert table["status"].to_pylist() == ["cut" if row == 20 else "ok" for row in KEPT]
    column = table["feature"].combine_chunks()
    assert pa.types.is_fixed_size_list(column.type)
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(-1, *about["shape"]), table["id"].to_pylist(), about


READERS: dict[str, Callable[[Path, str], Read]] = {
    ".safetensors": read_safetensors,
    ".npz": read_npz,
    ".parquet": read_parquet,
}


@pytest.fixture(params=READERS)
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(("output", "dtype"), [("pooled", "float16"), ("tokens", "float32"), ("norm", "float16")])
@pytest.mark.parametrize("piece", [1, 100, 8 << 20])
def test_round_trip(
    sample: Any, full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    suffix: str, output: str, dtype: str, piece: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "PIECE_BYTES", piece)  # a piece of one row, of some, of all
    file = tmp_path / "made" / f"x{suffix}"
    made = export_features(full, output, file)
    values, ids, about = READERS[suffix](file, output)
    wanted = sample.values(output)[KEPT].astype(dtype)
    assert values.dtype == wanted.dtype
    np.testing.assert_array_equal(values, wanted)
    assert ids == [sample.ids()[row] for row in KEPT]
    assert (about["manifest"], about["encoder"], about["side"], about["output"]) == (
        "m" * 64, "hf:tiny", "image", output,
    )  # fmt: skip
    assert about["fingerprint"] == {"weights": "w1", "precision": "float32"}
    assert about["constants"] == {"logit_scale": 4.5}
    assert (made.rows, made.left_out, made.bytes) == (36, 1, file.stat().st_size)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_same_store_gives_the_same_file(full: Path, tmp_path: Path, suffix: str) -> None:
    files = [tmp_path / f"{n}{suffix}" for n in "ab"]
    for file in files:
        export_features(full, "pooled", file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_as_float32(sample: Any, full: Path, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"x{suffix}"
    assert export_features(full, "pooled", file, dtype="float32").dtype == "float32"
    values, _, _ = READERS[suffix](file, "pooled")
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, sample.values("pooled")[KEPT].astype(np.float16).astype(np.float32))


def test_an_existing_file_stays_unless_asked(full: Path, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"x{suffix}"
    file.write_text("mine")
    with pytest.raises(VlpipeError, match="--overwrite"):
        export_features(full, "pooled", file)
    assert file.read_text() == "mine"
    export_features(full, "pooled", file, overwrite=True)
    assert len(READERS[suffix](file, "pooled")[1]) == 36


def test_a_damaged_chunk_leaves_no_file(full: Path, tmp_path: Path, suffix: str) -> None:
    chunk = max((p for p in (full / "pooled").rglob("*") if p.is_file()), key=lambda p: (p.name != "zarr.json", p))
    data = bytearray(chunk.read_bytes())
    data[0] ^= 1
    chunk.write_bytes(data)
    out = tmp_path / "out"
    with pytest.raises(CorruptCacheError):
        export_features(full, "pooled", out / f"x{suffix}")
    assert not out.exists() or list(out.iterdir()) == []


def test_what_is_refused(sample: Any, full: Path, store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'\.csv'; expected one of \.safetensors, \.npz, \.parquet"):
        export_features(full, "pooled", tmp_path / "x.csv")
    with pytest.raises(UsageError, match="has no suffix; expected one of"):
        export_features(full, "pooled", tmp_path / "x")
    with pytest.raises(UnknownNameError, match="did you mean 'pooled'"):
        export_features(full, "poled", tmp_path / "x.npz")
    with pytest.raises(UsageError, match="3 outputs: name one, norm or pooled or tokens"):
        export_features(full, None, tmp_path / "x.npz")
    with pytest.raises(NotCachedError, match="there is no store"):
        export_features(tmp_path / "none.zarr", None, tmp_path / "x.npz")
    empty = store.with_name("empty.image.zarr")
    sample.open_writer(empty, {"pooled": ArraySpec((5,))})
    with pytest.raises(NotCachedError, match="no usable row"):
        export_features(empty, None, tmp_path / "x.npz")
    assert list(tmp_path.glob("x*")) == []


def test_a_place_that_cannot_be_written_is_told_with_the_file(full: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(VlpipeError, match=r"cannot write '.*taken/x\.npz': .*; mend that, or give another --out"):
        export_features(full, "pooled", tmp_path / "taken" / "x.npz")


def test_ids_that_a_format_cannot_keep(sample: Any, store: Path, tmp_path: Path, monkeypatch: Any) -> None:
    odd = ["ends in a nul\0", "a\0b", "é" * 300, ""]
    writer = sample.open_writer(store, {"pooled": ArraySpec((5,))}, rows=4, ids=odd, block_rows=4)
    sample.fill(writer, ["pooled"], rows=4)
    with pytest.raises(RowsError, match="NUL"):
        export_features(store, "pooled", tmp_path / "x.npz")
    for suffix in (".safetensors", ".parquet"):
        export_features(store, "pooled", tmp_path / f"x{suffix}")
    assert read_safetensors(tmp_path / "x.safetensors", "pooled")[1] == odd
    assert pq.ParquetFile(tmp_path / "x.parquet").read()["id"].to_pylist() == odd
    monkeypatch.setattr(module, "HEADER_BYTES", 100)
    with pytest.raises(VlpipeError, match=r"at most 100; export to \.parquet or \.npz"):
        export_features(store, "pooled", tmp_path / "y.safetensors")
    assert not (tmp_path / "y.safetensors").exists()


def test_the_command(full: Path, tmp_path: Path) -> None:
    asked = [str(full), "--output", "tokens", "--out", str(tmp_path / "x.npz")]
    result = CliRunner().invoke(export, asked, catch_exceptions=False)
    assert result.output.startswith("36 rows of 3 x 2 float32, 1 rows that are not usable are left out -> ")
    again = CliRunner().invoke(export, [*asked, "--json", "--overwrite"], catch_exceptions=False)
    assert json.loads(again.output)["shape"] == [3, 2]


FLAT = """
import sys, threading, time
from pathlib import Path
from vlpipe.cache_store import export

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) << 10

small, big, folder, suffix = sys.argv[1:]
export.PIECE_BYTES = 1 << 20
export.export_features(Path(small), None, Path(folder, "small" + suffix))
seen, done = [anonymous()], False

def watch():
    while not done:
        seen.append(anonymous())
        time.sleep(0.002)

thread = threading.Thread(target=watch)
thread.start()
export.export_features(Path(big), None, Path(folder, "big" + suffix))
done = True
thread.join()
print(max(seen) - seen[0])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_is_flat(sample: Any, tmp_path: Path, suffix: str) -> None:
    rows, width = 4096, 8192  # 64 MiB
    fingerprints = {"wide": {"weights": "w"}}
    writer = sample.open_writer(
        tmp_path / "big.zarr", {"wide": ArraySpec((width,))}, rows=rows, block_rows=512, fingerprints=fingerprints
    )
    for block in writer.missing():
        with writer.claim(block):
            piece = np.ones((512, width), np.float16)
            writer.write(block, {"wide": piece}, np.ones(512, np.uint8), np.ones((512, 16), np.uint8))
    small = sample.open_writer(tmp_path / "small.zarr", {"pooled": ArraySpec((5,))})
    sample.fill(small, ["pooled"])
    command = [
        sys.executable,
        "-c",
        FLAT,
        *(str(tmp_path / name) for name in ("small.zarr", "big.zarr", "")),
        suffix,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # Less than the rows; of float16, Arrow's Parquet writer needs a dozen times a piece.
    assert int(done.stdout) < 60 << 20
