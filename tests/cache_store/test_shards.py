"""Arrays of many chunks: one shard a block, read as plain chunk files are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vlpipe.cache_store import layout
from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.committed import committed_blocks
from vlpipe.cache_store.errors import CorruptCacheError
from vlpipe.cache_store.group import Group
from vlpipe.cache_store.layout import default_block_rows, default_chunk_rows, default_file_rows
from vlpipe.cache_store.reader import open_features

NAMES = ["pooled", "tokens", "norm"]
EVERY = np.arange(37)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of at most 48 bytes, so that the sample's arrays have 2 to 8 chunks a block, and 2 are many."""
    monkeypatch.setattr(layout, "CHUNK_BYTES", 48)
    monkeypatch.setattr(layout, "MANY_CHUNKS", 2)


@pytest.fixture
def sharded(sample: Any, store: Path) -> Path:
    """The sample with row 9 failed and row 20 cut: 4 chunks of pooled, 4 of tokens a block; norm has one."""
    sample.fill(sample.open_writer(store), status=sample.statuses(failed=[9], cut=[20]))
    return store


def expected(sample: Any, name: str) -> np.ndarray:
    found: np.ndarray = sample.values(name).astype(sample.OUTPUTS[name].dtype)
    found[9] = 0
    return found


def test_which_arrays_are_sharded() -> None:
    assert default_file_rows(37, 8, 2) == 8
    assert default_file_rows(4, 8, 2) == 2  # 2 chunks
    assert default_file_rows(5, 8, 2) == 8
    assert default_file_rows(10**6, 8, 8) == 8  # a chunk is a block


@pytest.mark.parametrize(
    ("rows", "width", "sharded"),
    [
        (200_000, 768, False),  # 25 chunks
        (2_000_000, 768, False),
        (4_000, 196 * 512, False),  # 50 chunks
        (200_000, 196 * 512, True),  # 3,125 chunks in 391 blocks
    ],
)
def test_only_large_sets_are_sharded(
    monkeypatch: pytest.MonkeyPatch, rows: int, width: int, sharded: bool
) -> None:
    monkeypatch.undo()
    block = default_block_rows(rows, [layout.ArraySpec((width,))])
    chunk = default_chunk_rows(block, 2 * width)
    assert default_file_rows(rows, block, chunk) == (block if sharded else chunk)
    assert block * 2 * width <= 256 << 20


def test_a_shard_is_chunks_and_their_index(sample: Any, sharded: Path) -> None:
    """By hand, the last block: rows 32 to 36 in 3 of 4 chunks of 2 rows of 24 bytes."""
    assert sorted(path.name for path in (sharded / "tokens").iterdir()) == [
        *(f"c.{block}.0.0" for block in range(5)),
        "zarr.json",
    ]
    rows = np.concatenate([expected(sample, "tokens")[32:], np.zeros((1, 3, 2), np.float32)])
    data = b""
    for start in (0, 2, 4):
        plain = rows[start : start + 2].tobytes()
        data += plain + google_crc32c.value(plain).to_bytes(4, "little")
    numbers = [0, 52, 52, 52, 104, 52, 2**64 - 1, 2**64 - 1]
    index = b"".join(number.to_bytes(8, "little") for number in numbers)
    index += google_crc32c.value(index).to_bytes(4, "little")
    assert (sharded / "tokens" / "c.4.0.0").read_bytes() == data + index


@pytest.mark.parametrize("strategy", ["resident", "mapped", "blocks"])
def test_rows_come_back(sample: Any, sharded: Path, strategy: Any) -> None:
    usable = np.delete(EVERY, 9)
    for name in NAMES:
        features = open_features(sharded, name, strategy=strategy)
        order = np.random.default_rng(0).permutation(usable)
        np.testing.assert_array_equal(features.take(order), expected(sample, name)[order], strict=True)


@pytest.mark.parametrize("rows", [3, 8, 9, 15, 16])
def test_partly_filled_blocks(sample: Any, store: Path, rows: int) -> None:
    sample.fill(sample.open_writer(store, rows=rows), rows=rows)
    for name in NAMES:
        wanted = sample.values(name, rows).astype(sample.OUTPUTS[name].dtype)
        for strategy in ("resident", "mapped", "blocks"):
            features = open_features(store, name, strategy=strategy)
            np.testing.assert_array_equal(features.take(np.arange(rows)), wanted, strict=True)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=st.lists(st.integers(0, 36).filter(lambda row: row != 9), max_size=60))
def test_any_request_equals_numpy(sample: Any, sharded: Path, asked: list[int]) -> None:
    positions = np.array(asked, np.int64)
    for name in NAMES:
        found = open_features(sharded, name, strategy="mapped").take(positions)
        np.testing.assert_array_equal(found, expected(sample, name)[positions], strict=True)


def test_going_on_ends_in_the_same_files(sample: Any, store: Path, sharded: Path, contents: Any) -> None:
    other = store.with_name("other.zarr")
    status = sample.statuses(failed=[9], cut=[20])
    sample.fill(sample.open_writer(other), blocks=[3, 1], status=status)
    (other / "tokens" / "c.3.0.0").unlink()
    assert sample.fill(sample.open_writer(other), status=status) == [0, 2, 3, 4]
    assert contents(other) == contents(sharded)


def test_each_chunk_is_read_and_mapped_alone(sample: Any, sharded: Path) -> None:
    array = StoredArray.open(sharded / "pooled")
    chunks = committed_blocks(sharded, Group.open(sharded), array).chunks
    assert (array.chunk_rows, array.file_rows, sorted(chunks)) == (4, 8, list(range(10)))
    for chunk, crc in chunks.items():
        span = array.span(chunk)
        wanted = expected(sample, "pooled")[span.start : span.stop]
        out = np.empty_like(wanted)
        array.read(chunk, crc, out)
        np.testing.assert_array_equal(out, wanted)
        np.testing.assert_array_equal(array.map(chunk, crc), wanted, strict=True)


def found_wrong(array: StoredArray, chunks: Mapping[int, int], use: str) -> dict[int, str]:
    """What each chunk of the last block, rows 32 to 36, is refused for."""
    found = {}
    for chunk in (8, 9):
        try:
            if use == "read":
                array.read(chunk, chunks[chunk], np.empty((len(array.span(chunk)), 5), np.float16))
            else:
                array.map(chunk, chunks[chunk])
        except CorruptCacheError as error:
            found[chunk] = str(error)
    return found


@pytest.mark.parametrize("use", ["read", "map"])
def test_every_flipped_byte_of_a_shard_is_noticed_by_its_chunk(sharded: Path, use: str) -> None:
    """The index is checked with the last chunk, so that reading all chunks reads all bytes."""
    array = StoredArray.open(sharded / "pooled")
    chunks = committed_blocks(sharded, Group.open(sharded), array).chunks
    path = sharded / "pooled" / "c.4.0"
    data = path.read_bytes()
    assert len(data) == 44 + 44 + 2 * 16 + 4
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :])
        assert list(found_wrong(array, chunks, use)) == [8 if place < 44 else 9]


@pytest.mark.parametrize("use", ["read", "map"])
@pytest.mark.parametrize(
    ("size", "noticed"),
    [(0, [8, 9]), (20, [8, 9]), (44, [9]), (60, [9]), (90, [9]), (123, [9]), (125, [9])],
)
def test_a_shard_of_another_length(sharded: Path, size: int, noticed: list[int], use: str) -> None:
    array = StoredArray.open(sharded / "pooled")
    chunks = committed_blocks(sharded, Group.open(sharded), array).chunks
    path = sharded / "pooled" / "c.4.0"
    path.write_bytes((path.read_bytes() + b"\0")[:size])
    found = found_wrong(array, chunks, use)
    assert list(found) == noticed
    assert all("bytes, expected 124; rows 3" in message for message in found.values())
    assert not array.is_whole(8)


def test_damage_is_noticed_or_harmless(sample: Any, sharded: Path, damage: Any) -> None:
    tried, noticed = damage.damage_every_file(sample, sharded, rounds=2, seed=0)
    assert tried > 180  # 31 files, three outputs
    assert noticed > 80


@pytest.mark.soak
def test_much_damage_is_noticed_or_harmless(sample: Any, sharded: Path, damage: Any) -> None:
    tried, _ = damage.damage_every_file(sample, sharded, rounds=40, seed=1)
    assert tried > 2 * 500


def test_the_metadata_say_what_zarr_calls_it(sharded: Path) -> None:
    node = json.loads((sharded / "tokens" / "zarr.json").read_text())
    (codec,) = node["codecs"]
    assert (codec["name"], codec["configuration"]["index_location"]) == ("sharding_indexed", "end")
    assert codec["configuration"]["chunk_shape"] == [2, 3, 2]
    assert node["chunk_grid"]["configuration"]["chunk_shape"] == [8, 3, 2]
