"""What is written is what is read, by us, by NumPy and by zarr."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vlpipe.cache_store import strategies
from vlpipe.cache_store.errors import ForkedError, NotCachedError, RowsError
from vlpipe.cache_store.layout import ArraySpec
from vlpipe.cache_store.reader import open_features
from vlpipe.foundation.errors import UnknownNameError

BOTH = pytest.mark.parametrize("strategy", ["resident", "mapped", "blocks"])
NAMES = ["pooled", "tokens", "norm"]


def expected(sample: Any, name: str, rows: int) -> np.ndarray:
    found: np.ndarray = sample.values(name, rows).astype(sample.OUTPUTS[name].dtype)
    return found


@BOTH
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 64, 101])
def test_rows_come_back(sample: Any, store: Path, rows: int, strategy: Any) -> None:
    writer = sample.open_writer(store, rows=rows)
    assert sample.fill(writer, rows=rows) == list(range(-(-rows // 8)))
    assert writer.missing() == []
    for name in NAMES:
        features = open_features(store, name, strategy=strategy)
        assert (len(features), features.ids, features.strategy) == (rows, sample.ids(rows), strategy)
        assert features.dtype == sample.OUTPUTS[name].dtype
        assert features.usable.all()
        np.testing.assert_array_equal(features.take(np.arange(rows)), expected(sample, name, rows), strict=True)


@BOTH
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=st.lists(st.integers(0, 36), max_size=80))
def test_any_request_equals_numpy(sample: Any, whole: Path, strategy: Any, asked: list[int]) -> None:
    positions = np.array(asked, np.int64)
    for name in NAMES:
        features = open_features(whole, name, strategy=strategy)
        wanted = expected(sample, name, 37)[positions]
        np.testing.assert_array_equal(features.take(positions), wanted, strict=True)
        out = np.full_like(wanted, 9)
        assert features.take(positions, out) is out
        np.testing.assert_array_equal(out, wanted)
        np.testing.assert_array_equal(features.rows([sample.ids()[p] for p in asked]), wanted)


@pytest.fixture(scope="module")
def whole(sample: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("whole") / "a.zarr"
    sample.fill(sample.open_writer(path))
    return path


def test_more_chunks_than_may_be_mapped(sample: Any, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "MAPPED_CHUNKS", 2)
    features = open_features(whole, "pooled", strategy="mapped")
    order = np.random.default_rng(0).permutation(37)
    for _ in range(2):
        np.testing.assert_array_equal(features.take(order), expected(sample, "pooled", 37)[order])


def test_budget_decides(whole: Path) -> None:
    size = 5 * (8 * 10 + 4)  # five chunks of eight rows of five float16
    assert open_features(whole, "pooled", memory_budget=size).strategy == "resident"
    assert open_features(whole, "pooled", memory_budget=size - 1).strategy == "mapped"


def test_chunk_files_are_plain_bytes_and_crc(sample: Any, whole: Path) -> None:
    rows = expected(sample, "pooled", 37)
    padded = np.concatenate([rows, np.zeros((3, 5), np.float16)])
    for chunk in range(5):
        plain = padded[8 * chunk : 8 * chunk + 8].astype("<f2").tobytes()
        crc = google_crc32c.value(plain).to_bytes(4, "little")
        assert (whole / "pooled" / f"c.{chunk}.0").read_bytes() == plain + crc


def test_zarr_reads_the_same_without_a_warning(sample: Any, whole: Path) -> None:
    group = zarr.open_group(whole, mode="r")  # pytest turns warnings into errors
    assert {name for name, _ in group.members(max_depth=None)} == {*NAMES, "status", "content_hash"}
    for name in NAMES:
        np.testing.assert_array_equal(group[name][:], expected(sample, name, 37), strict=True)
    np.testing.assert_array_equal(group["status"][:], sample.statuses())
    np.testing.assert_array_equal(group["content_hash"][:], sample.hashes())
    assert group.attrs["vlpipe"]["format"] == 1
    assert group["pooled"].attrs["vlpipe"]["fingerprint"] == {"weights": "w1", "precision": "float32"}


def test_any_parquet_reader_reads_the_ids(sample: Any, whole: Path) -> None:
    assert pq.read_table(whole / "status" / "rows.parquet").column("id").to_pylist() == sample.ids()


def test_stale_consolidated_metadata_hides_nothing(sample: Any, store: Path) -> None:
    sample.fill(sample.open_writer(store, {"norm": ArraySpec(())}), ["norm"])
    with pytest.warns(UserWarning, match=r"[Cc]onsolidated"):
        zarr.consolidate_metadata(store)
    sample.fill(sample.open_writer(store, {"pooled": ArraySpec((5,))}), ["pooled"])
    np.testing.assert_array_equal(
        open_features(store, "pooled").take(np.arange(37)), expected(sample, "pooled", 37)
    )


def test_several_chunks_a_block(sample: Any, store: Path) -> None:
    """Rows of 6 MB: two a chunk, eight a block, the last block short."""
    spec = {"wide": ArraySpec((3 << 20,))}
    writer = sample.open_writer(store, spec, rows=11)
    value = np.arange(11, dtype=np.float16)
    for block in writer.missing():
        span = writer.span(block)
        rows = np.broadcast_to(value[span.start : span.stop, None], (len(span), 3 << 20))
        with writer.claim(block):
            writer.write(block, {"wide": rows}, np.ones(len(span), np.uint8), sample.hashes(11)[: len(span)])
    assert sorted(int(p.name.split(".")[1]) for p in (store / "wide").glob("c.*")) == [0, 1, 2, 3, 4, 5]
    for strategy in ("resident", "mapped", "blocks"):
        features = open_features(store, "wide", strategy=strategy)
        assert features.take(np.array([10, 0, 5, 9, 10]))[:, [0, -1]].tolist() == [
            [v, v] for v in (10, 0, 5, 9, 10)
        ]


@BOTH
def test_rows_that_are_not_usable_are_refused_by_name(sample: Any, store: Path, strategy: Any) -> None:
    sample.fill(sample.open_writer(store), blocks=[0, 1], status=sample.statuses(failed=[9], cut=[10]))
    features = open_features(store, "pooled", strategy=strategy)
    assert features.status.tolist() == [1] * 9 + [2, 3] + [1] * 5 + [0] * 21
    assert np.flatnonzero(~features.usable).tolist() == [9, *range(16, 37)]
    features.take(np.array([8, 10]))
    with pytest.raises(
        NotCachedError, match=r"2 of the rows asked, first '.*009.JPG' \(failed\), '.*030.JPG' \(abs"
    ):
        features.take(np.array([8, 30, 9, 30]))


def test_bad_requests(whole: Path, tmp_path: Path) -> None:
    features = open_features(whole, "pooled")
    for positions in ([37], [-1], [0.5], [[0]]):
        with pytest.raises(RowsError):
            features.take(np.array(positions))
    with pytest.raises(RowsError, match="out has shape"):
        features.take(np.array([1]), np.empty((1, 5), np.float32))
    with pytest.raises(RowsError, match=r"1 of 2 ids are not in the store, first \['nobody'\]"):
        features.positions([features.ids[0], "nobody"])
    with pytest.raises(UnknownNameError, match="did you mean 'pooled'"):
        open_features(whole, "poold")
    with pytest.raises(UnknownNameError, match="strategy"):
        open_features(whole, "pooled", strategy="memory")  # type: ignore[arg-type]
    with pytest.raises(NotCachedError, match="vlpipe extract"):
        open_features(tmp_path / "nothing.zarr", "pooled")


def test_a_forked_process_is_refused(whole: Path) -> None:
    features = open_features(whole, "pooled")
    child = os.fork()
    if child == 0:  # leave by _exit whatever happens: this process is a copy of pytest
        code = 1
        try:
            features.take(np.array([0]))
        except ForkedError:
            code = 7
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_spawned_process_reopens(sample: Any, whole: Path) -> None:
    features = open_features(whole, "pooled", strategy="mapped")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(features.take, (np.array([30, 2]),))
    np.testing.assert_array_equal(found, expected(sample, "pooled", 37)[[30, 2]])
