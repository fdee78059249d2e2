"""Chunk files mapped side by side: only where they are whole pages, each verified before its first use."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlpipe.cache_store import strategies
from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.errors import CorruptCacheError, StaleCacheError
from vlpipe.cache_store.layout import ArraySpec
from vlpipe.cache_store.reader import open_features
from vlpipe.cache_store.stretch import Stretch
from vlpipe.cache_store.writer import StoreWriter

ROWS, BLOCK_ROWS = 44, 8  # the last block is half full
WIDTH = os.sysconf("SC_PAGE_SIZE") // 4


def values(block: int, changed: float = 0) -> np.ndarray:
    rows = min(BLOCK_ROWS, ROWS - block * BLOCK_ROWS)
    drawn = np.random.default_rng(block).standard_normal((rows, WIDTH), np.float32)
    found: np.ndarray = (drawn + changed).astype(np.float16)
    return found


def write(sample: Any, writer: StoreWriter, block: int, changed: float = 0) -> None:
    rows = values(block, changed)
    content = sample.hashes(ROWS)[block * BLOCK_ROWS :][: len(rows)] + np.uint8(changed)
    with writer.claim(block):
        writer.write(block, {"pages": rows}, np.ones(len(rows), np.uint8), content)


@pytest.fixture
def paged(sample: Any, store: Path) -> Path:
    """Chunks of four pages."""
    writer = sample.open_writer(store, {"pages": ArraySpec((WIDTH,))}, rows=ROWS, block_rows=BLOCK_ROWS)
    for block in range(6):
        write(sample, writer, block)
    return store


def damage(path: Path, at: int, cut: bool = False) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data[:at] if cut else data)


def chunk_file(store: Path, chunk: int) -> Path:
    return Path(str(StoredArray.open(store / "pages").path(chunk)))


def test_rows_of_all_files_at_once(paged: Path) -> None:
    whole = np.concatenate([values(block) for block in range(6)])
    features = open_features(paged, "pages", strategy="mapped")
    assert isinstance(features._rows, strategies.MappedTogether)
    draw = np.random.default_rng(0)
    for size in (0, 1, 3, 100):
        positions = draw.integers(0, ROWS, size)
        np.testing.assert_array_equal(features.take(positions), whole[positions], strict=True)
    np.testing.assert_array_equal(features.as_numpy(), whole, strict=True)


@pytest.mark.parametrize(
    ("at", "cut"), [(0, False), (-5, False), (-1, False), (0, True), (4096, True), (-1, True)]
)
@pytest.mark.parametrize("chunk", [2, 5])
def test_a_damaged_file_is_told_before_any_row_of_it_is_given(paged: Path, at: int, cut: bool, chunk: int) -> None:
    """Also in the zeros that fill the last chunk up, and where the mapped pages would end behind the file."""
    features = open_features(paged, "pages", strategy="mapped")
    damage(chunk_file(paged, chunk), at, cut)
    others = [block * BLOCK_ROWS for block in range(6) if block != chunk]
    features.take(np.array(others))
    for _ in range(2):
        with pytest.raises(CorruptCacheError, match=f"rows {8 * chunk} to {min(8 * chunk + 7, 43)} are lost"):
            features.take(np.array([0, chunk * BLOCK_ROWS + 1]))


def test_a_longer_file_is_told(paged: Path) -> None:
    path = chunk_file(paged, 1)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CorruptCacheError, match="bytes, expected"):
        open_features(paged, "pages", strategy="mapped").take(np.array([9]))


def test_verified_once(paged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, used = StoredArray.map_into, list[int]()

    def counted(array: StoredArray, stretch: Stretch, chunk: int, crc: int) -> None:
        used.append(chunk)
        real(array, stretch, chunk, crc)

    monkeypatch.setattr(StoredArray, "map_into", counted)
    features = open_features(paged, "pages", strategy="mapped")
    features.take(np.array([17, 0, 1]))
    assert used == [0, 2]
    for _ in range(2):
        assert sum(len(batch.rows) for batch in features.batches(5, shuffle=True)) == ROWS
        assert sum(len(rows) for _, rows in features.blocks()) == ROWS
    assert sorted(used) == [0, 1, 2, 3, 4, 5]


def test_a_block_written_again_keeps_its_mapped_rows_and_is_refused_unmapped(sample: Any, paged: Path) -> None:
    features = open_features(paged, "pages", strategy="mapped")
    features.take(np.array([0]))
    writer = sample.open_writer(paged, {"pages": ArraySpec((WIDTH,))}, rows=ROWS, block_rows=BLOCK_ROWS)
    for block in (0, 1):
        write(sample, writer, block, changed=1)
    np.testing.assert_array_equal(features.take(np.arange(8)), values(0))
    with pytest.raises(StaleCacheError, match="written again"):
        features.take(np.array([8]))
    np.testing.assert_array_equal(open_features(paged, "pages").take(np.arange(8)), values(0, 1))


def test_views_outlive_their_set(paged: Path) -> None:
    features = open_features(paged, "pages", strategy="mapped")
    kept = [rows for _, rows in features.blocks()]
    del features
    for block, rows in enumerate(kept):
        np.testing.assert_array_equal(rows, values(block))


def test_addresses_are_given_back(paged: Path) -> None:
    def mapped() -> int:
        return sum("pages/c" in line for line in Path("/proc/self/maps").read_text().splitlines())

    for _ in range(3):
        features = open_features(paged, "pages", strategy="mapped")
        features.as_numpy()
        assert mapped() >= 1
        del features
        assert mapped() == 0


def test_too_many_files_are_mapped_one_by_one(paged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "MAPPED_CHUNKS", 3)
    features = open_features(paged, "pages", strategy="mapped")
    assert isinstance(features._rows, strategies.Mapped)
    np.testing.assert_array_equal(features.as_numpy(), np.concatenate([values(block) for block in range(6)]))


def test_threads_map_a_file_once(paged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second would put what a writer has replaced meanwhile over rows that the first has verified."""
    features = open_features(paged, "pages", strategy="mapped")
    mapped: list[int] = []
    real = StoredArray.map_into

    def slow(array: StoredArray, stretch: Any, chunk: int, crc: int) -> None:
        mapped.append(chunk)
        time.sleep(0.05)
        real(array, stretch, chunk, crc)

    monkeypatch.setattr(StoredArray, "map_into", slow)
    with ThreadPoolExecutor(3) as pool:
        taken = list(pool.map(lambda _: features.take(np.array([0, 9])), range(3)))
    assert sorted(mapped) == [0, 1]
    for rows in taken:
        np.testing.assert_array_equal(rows, features.take(np.array([0, 9])))
