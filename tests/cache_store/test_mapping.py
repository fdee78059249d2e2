"""Mapped chunk files: few handles, and no byte that was not verified."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlpipe.cache_store import strategies
from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.errors import CacheReadError, CorruptCacheError, StaleCacheError
from vlpipe.cache_store.layout import ArraySpec
from vlpipe.cache_store.reader import open_features

EVERY = np.arange(37)


@contextmanager
def handles(most: int) -> Iterator[None]:
    """At most so many open files in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_mapped_chunks_of_several_sets_hold_no_handles(sample: Any, store: Path) -> None:
    """300 chunks in two sets, each mapped at the same time."""
    outputs = {"pooled": ArraySpec((5,)), "norm": ArraySpec(())}
    sample.fill(sample.open_writer(store, outputs, rows=150, block_rows=1), outputs, rows=150)
    with handles(256):
        sets = {name: open_features(store, name, strategy="mapped") for name in outputs}
        for _ in range(2):
            for name, features in sets.items():
                expected = sample.values(name, 150).astype(np.float16)
                np.testing.assert_array_equal(features.take(np.arange(150)), expected)


def test_a_file_that_cannot_be_opened_is_one_clear_line(full: Path) -> None:
    features = open_features(full, "pooled", strategy="mapped")
    array, out = StoredArray.open(full / "pooled"), np.empty((8, 5), np.float16)
    for use in (lambda: features.take(EVERY[:3]), lambda: array.read(0, 0, out)):
        told = pytest.raises(CacheReadError, match=r"cannot read '.*pooled/c.0.0': .*[Tt]oo many open files")
        with told, handles(0):
            use()


@pytest.mark.parametrize("tail", [False, True])
def test_a_chunk_that_is_mapped_again_is_verified_again(
    full: Path, monkeypatch: pytest.MonkeyPatch, tail: bool
) -> None:
    monkeypatch.setattr(strategies, "MAPPED_CHUNKS", 2)
    features = open_features(full, "pooled", strategy="mapped")
    features.take(np.delete(EVERY, 9))  # maps all, drops the first
    path = full / "pooled" / "c.0.0"
    data = bytearray(path.read_bytes())
    data[-1 if tail else 0] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptCacheError, match=r"pooled/c\.0\.0' has crc32c"):
        features.take(np.array([0]))


def test_a_chunk_that_was_rewritten_is_not_read_when_mapped_again(
    sample: Any, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategies, "MAPPED_CHUNKS", 2)
    features = open_features(full, "pooled", strategy="mapped")
    features.take(np.delete(EVERY, 9))
    writer, content = sample.open_writer(full), sample.hashes()
    rows = {name: sample.values(name)[:8] + 1 for name in sample.OUTPUTS}
    with writer.claim(0):
        writer.write(0, rows, np.ones(8, np.uint8), content[:8] + 1)
    with pytest.raises(StaleCacheError, match="written again"):
        features.take(np.array([0]))
