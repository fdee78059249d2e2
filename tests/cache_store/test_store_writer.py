"""What a writer accepts, refuses and goes on with."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlpipe.cache_store.errors import (
    CacheWriteError,
    CorruptCacheError,
    LockedError,
    NotCachedError,
    RowsError,
    StaleCacheError,
    ValueRangeError,
)
from vlpipe.cache_store.layout import ArraySpec, Status
from vlpipe.cache_store.metadata import sealed
from vlpipe.cache_store.reader import open_features
from vlpipe.foundation.errors import StaleError, UsageError

POOLED = {"pooled": ArraySpec((5,))}
TOKENS = {"tokens": ArraySpec((3, 2), "float32")}


def write(sample: Any, writer: Any, **changed: Any) -> None:
    """Write block 1 of `pooled` (rows 8 to 15) with some argument changed."""
    span = slice(8, 16)
    given = {
        "rows": {"pooled": sample.values("pooled")[span]},
        "status": sample.statuses()[span],
        "content_hash": sample.hashes()[span],
    }
    with writer.claim(1):
        writer.write(1, **{**given, **changed})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, r"output 'pooled' of row 'set a/é 010.JPG' has the value nan, expected a finite number"),
        (np.inf, r"has the value inf, expected a finite number"),
        (70000, r"'set a/é 010.JPG' has the value 70000, float16 holds at most 65504; .*--dtype float32"),
        (-65520, r"has the value -65520, float16 holds"),
    ],
)
def test_a_value_that_does_not_fit_is_named_and_nothing_kept(
    sample: Any, store: Path, contents: Any, value: float, message: str
) -> None:
    writer = sample.open_writer(store, POOLED)
    rows = sample.values("pooled")[8:16]
    rows[2, 3] = value
    before = contents(store)
    with pytest.raises(ValueRangeError, match=message):
        write(sample, writer, rows={"pooled": rows})
    assert contents(store) == {**before, "status/locks/1": b""}
    assert writer.missing() == [0, 1, 2, 3, 4]


def test_the_largest_value_that_rounds_into_float16_fits(sample: Any, store: Path) -> None:
    rows = sample.values("pooled")[8:16]
    rows[2, 3] = 65519
    write(sample, sample.open_writer(store, POOLED), rows={"pooled": rows})
    assert open_features(store, "pooled").take(np.array([10]))[0, 3] == 65504


def test_large_values_fit_float32(sample: Any, store: Path) -> None:
    writer = sample.open_writer(store, {"pooled": ArraySpec((5,), "float32")})
    write(sample, writer, rows={"pooled": np.full((8, 5), 1e30, np.float32)})
    assert (open_features(store, "pooled").take(np.array([8])) == np.float32(1e30)).all()


def test_failed_rows_are_zeros_whatever_they_held(sample: Any, store: Path) -> None:
    rows = sample.values("pooled")[8:16]
    rows[1] = np.nan
    writer = sample.open_writer(store, POOLED)
    write(sample, writer, rows={"pooled": rows}, status=sample.statuses(failed=[9])[8:16])
    assert not writer.read_block(1).rows["pooled"][1].any()
    assert writer.failed().tolist() == [9]


def test_an_all_zero_block_leaves_its_files(sample: Any, store: Path) -> None:
    write(sample, sample.open_writer(store, POOLED), rows={"pooled": np.zeros((8, 5), np.float32)})
    assert (store / "pooled" / "c.1.0").exists()
    assert open_features(store, "pooled").usable[8:16].all()


@pytest.mark.parametrize(
    "changed",
    [
        {"rows": {}},
        {"rows": {"other": np.zeros((8, 5), np.float32)}},
        {"rows": {"pooled": np.zeros((7, 5), np.float32)}},
        {"rows": {"pooled": np.zeros((8, 5), np.float64)}},
        {"status": np.zeros(8, np.uint8)},
        {"status": np.full(8, 9, np.uint8)},
        {"status": np.ones(8, np.int64)},
        {"content_hash": np.zeros((8, 15), np.uint8)},
    ],
)
def test_wrong_rows_are_refused(sample: Any, store: Path, changed: dict[str, Any]) -> None:
    writer = sample.open_writer(store, POOLED)
    with pytest.raises(RowsError, match="expected"):
        write(sample, writer, **changed)
    assert 1 in writer.missing()


def test_writing_without_a_claim_is_refused(sample: Any, store: Path) -> None:
    writer = sample.open_writer(store, POOLED)
    with pytest.raises(LockedError, match="claim"):
        writer.write(0, {"pooled": sample.values("pooled")[:8]}, sample.statuses()[:8], sample.hashes()[:8])
    assert not list((store / "pooled").glob("c.*"))


def test_unusable_arguments(sample: Any, store: Path) -> None:
    with pytest.raises(RowsError, match="at least one"):
        sample.open_writer(store, rows=0)
    with pytest.raises(RowsError, match=r"id 'b' stands at rows 1 and 3"):
        sample.open_writer(store, ids=["a", "b", "c", "b"])
    with pytest.raises(UsageError, match="power of two"):
        sample.open_writer(store, block_rows=10)
    with pytest.raises(UsageError, match="at least one"):
        sample.open_writer(store, {})
    with pytest.raises(UsageError, match="status"):
        sample.open_writer(store, {"status": ArraySpec((3,))})
    assert not store.exists()


def test_interrupted_work_goes_on_where_it_stopped(sample: Any, store: Path) -> None:
    assert sample.fill(sample.open_writer(store), blocks=[0, 3]) == [0, 3]
    assert sample.fill(sample.open_writer(store)) == [1, 2, 4]
    assert sample.fill(sample.open_writer(store)) == []


def test_counts(sample: Any, store: Path) -> None:
    writer = sample.open_writer(store)
    assert writer.counts() == {Status.ABSENT: 37, Status.OK: 0, Status.FAILED: 0, Status.CUT: 0}
    sample.fill(writer, blocks=[1, 4], status=sample.statuses(failed=[9], cut=[8, 36]))
    assert writer.counts() == {Status.ABSENT: 24, Status.OK: 10, Status.FAILED: 1, Status.CUT: 2}


def test_a_foreign_fingerprint_is_named_field_by_field(sample: Any, full: Path, contents: Any) -> None:
    before = contents(full)
    foreign = {n: {"weights": "w2", "tokenizer": "t"} for n in sample.OUTPUTS}
    with pytest.raises(StaleError) as caught:
        sample.open_writer(full, POOLED, fingerprints=foreign)
    assert caught.value.exit_code == 4
    assert str(caught.value) == (
        f"'{full}' was made from something else: pooled.precision: cached 'float32', asked nothing; "
        "pooled.tokenizer: cached nothing, asked 't'; pooled.weights: cached 'w1', asked 'w2'. "
        "Keep both with --as NAME, or use another --cache"
    )
    assert contents(full) == before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"manifest": "other"}, "manifest: cached 'mmm.*', asked 'other'"),
        ({"side": "text"}, "side: cached 'image', asked 'text'"),
        ({"constants": {"logit_scale": 4.0}}, r"constants.logit_scale: cached '4.5', asked '4.0'"),
        ({"rows": 36}, r"ids: cached '37 rows of digest \w+', asked '36 rows"),
        ({"outputs": {"pooled": ArraySpec((5,), "float32")}}, "pooled.dtype: cached 'float16', asked 'float32'"),
        ({"outputs": {"pooled": ArraySpec((6,))}}, r"pooled.shape: cached '\(5,\)', asked '\(6,\)'"),
    ],
)
def test_other_differences(sample: Any, full: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(StaleCacheError, match=message):
        sample.open_writer(full, **changed)


def test_the_encoders_spelling_and_block_size_do_not_matter(sample: Any, full: Path) -> None:
    writer = sample.open_writer(full, encoder="hf:/elsewhere/tiny", block_rows=16)
    assert (writer.missing(), writer.block_rows) == ([], 8)


def test_a_newer_format_is_refused(sample: Any, full: Path) -> None:
    path = full / "zarr.json"
    root = json.loads(path.read_text())
    own = root["attributes"]["vlpipe"] | {"format": 2}
    again = sealed({key: value for key, value in own.items() if key != "checksum"})
    for content, refusal in ((own, CorruptCacheError), (again, StaleCacheError)):
        path.write_text(json.dumps({**root, "attributes": {"vlpipe": content}}))
        with pytest.raises(refusal):
            open_features(full, "pooled")
    for use in (sample.open_writer, lambda store: open_features(store, "pooled")):
        with pytest.raises(StaleCacheError, match="has cache format 2, this vlpipe reads format 1"):
            use(full)


def test_an_added_output_leaves_the_others_alone(sample: Any, store: Path, contents: Any) -> None:
    sample.fill(sample.open_writer(store, POOLED), ["pooled"], status=sample.statuses(failed=[9]))
    before = contents(store)
    writer = sample.open_writer(store, TOKENS)
    assert writer.missing() == [0, 1, 2, 3, 4]
    sample.fill(writer, ["tokens"], blocks=[0, 1, 2], status=sample.statuses(failed=[3]))
    after = contents(store)
    assert {name for name, data in before.items() if after[name] != data} == {
        "status/c.0",  # row 3 failed for tokens
        *(f"status/blocks/{block}.json" for block in (0, 1, 2)),
    }
    assert np.flatnonzero(~open_features(store, "pooled").usable).tolist() == [3, 9]
    assert np.flatnonzero(open_features(store, "tokens").usable).tolist() == sorted({*range(24)} - {3, 9})
    both = sample.open_writer(store, {**POOLED, **TOKENS})
    assert both.missing() == writer.missing() == [3, 4]


def test_an_added_output_of_other_content_is_refused(sample: Any, store: Path, contents: Any) -> None:
    sample.fill(sample.open_writer(store, POOLED), ["pooled"])
    before = contents(store)
    content = sample.hashes()
    content[[10, 12], 0] ^= 1
    writer = sample.open_writer(store, TOKENS)
    with pytest.raises(
        StaleCacheError, match=r"2 rows of block 1 .*first \['set a/é 010.JPG', 'set a/é 012.JPG'\]"
    ):
        sample.fill(writer, ["tokens"], blocks=[1], content=content)
    after = contents(store)
    assert {name: after[name] for name in before} == before
    sample.fill(writer, ["tokens"], blocks=[0], content=content)


def test_failed_rows_are_mended_with_all_outputs(sample: Any, full: Path) -> None:
    writer = sample.open_writer(full)
    assert writer.failed().tolist() == [9]
    block = writer.read_block(1)
    assert block.status.tolist() == [1, 2, 1, 1, 1, 1, 1, 1]
    rows = {name: given.copy() for name, given in block.rows.items()}
    for name, given in rows.items():
        given[1] = sample.values(name)[9]
    with writer.claim(1) as mine:
        assert mine
        writer.write(1, rows, sample.statuses()[8:16], block.content_hash)
    assert writer.failed().size == 0
    features = open_features(full, "pooled")
    np.testing.assert_array_equal(features.take(np.arange(37)), sample.values("pooled").astype(np.float16))


def test_one_output_alone_does_not_mend_a_failed_row(sample: Any, full: Path) -> None:
    sample.fill(sample.open_writer(full, POOLED), ["pooled"], blocks=[1], status=sample.statuses())
    assert sample.open_writer(full).failed().tolist() == [9]


def test_an_absent_block_cannot_be_read(sample: Any, store: Path) -> None:
    with pytest.raises(NotCachedError, match="block 2"):
        sample.open_writer(store).read_block(2)


def test_a_lost_table_of_ids_is_written_anew(sample: Any, full: Path, contents: Any) -> None:
    before = contents(full)
    (full / "status" / "rows.parquet").write_bytes(b"damaged")
    with pytest.raises(CorruptCacheError, match=r"rows.parquet' is missing or damaged; the ids of rows 0 to 36"):
        _ = open_features(full, "pooled").ids
    sample.open_writer(full)
    assert contents(full) == before


def test_a_store_deleted_under_the_writer(sample: Any, store: Path) -> None:
    writer = sample.open_writer(store, POOLED)
    with writer.claim(1):
        shutil.rmtree(store)
        with pytest.raises(CacheWriteError, match="No such file"):
            writer.write(
                1, {"pooled": sample.values("pooled")[8:16]}, sample.statuses()[8:16], sample.hashes()[8:16]
            )
    with pytest.raises(CacheWriteError, match="No such file"), writer.claim(2):
        pass


@pytest.mark.parametrize("refused", [1, 7, 11])
def test_a_full_disk(
    sample: Any, full: Path, monkeypatch: pytest.MonkeyPatch, contents: Any, refused: int
) -> None:
    """Whichever of a block's 12 syncs the disk refuses: the other blocks stay, and the block is written later."""
    before = contents(full)
    status = sample.statuses(failed=[9], cut=[20])
    real, calls = os.fsync, iter(range(1, 1000))

    def full_disk(handle: int) -> None:
        if next(calls) == refused:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    (full / "status" / "blocks" / "2.json").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full_disk)
        with pytest.raises(CacheWriteError, match="No space left"):
            sample.fill(sample.open_writer(full), status=status)
    assert np.flatnonzero(~open_features(full, "pooled").usable).tolist() == [9, *range(16, 24)]
    assert sample.fill(sample.open_writer(full), status=status) == [2]
    assert contents(full) == before
