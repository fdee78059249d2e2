"""The digest of what was encoded."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlpipe.cache_store.errors import CorruptCacheError, StaleCacheError
from vlpipe.cache_store.layout import ArraySpec
from vlpipe.cache_store.reader import open_features

CHUNK = Path("content_hash/c.1.0")


def reference(content: np.ndarray, usable: np.ndarray) -> str:
    """Row by row."""
    found = hashlib.sha256()
    for row, good in zip(content, usable, strict=True):
        found.update(row.tobytes() if good else bytes(16))
    return found.hexdigest()


@pytest.mark.parametrize("block_rows", [1, 8, 64])
def test_it_is_of_usable_rows_and_of_no_block_size(sample: Any, store: Path, block_rows: int) -> None:
    writer = sample.open_writer(store, block_rows=block_rows)
    sample.fill(writer, status=sample.statuses(failed=[9], cut=[20]))
    for name in sample.OUTPUTS:
        found = open_features(store, name).content_digest
        assert found == reference(sample.hashes(), np.arange(37) != 9)


def test_it_is_of_what_is_committed_for_the_output(sample: Any, store: Path) -> None:
    sample.fill(sample.open_writer(store, {"pooled": ArraySpec((5,))}), ["pooled"], blocks=[0, 2, 4])
    sample.fill(sample.open_writer(store, {"norm": ArraySpec(())}), ["norm"], blocks=[1, 2])
    rows = np.arange(37)
    there = {"pooled": np.isin(rows // 8, [0, 2, 4]), "norm": np.isin(rows // 8, [1, 2])}
    for name, usable in there.items():
        assert open_features(store, name).content_digest == reference(sample.hashes(), usable)


def test_one_replaced_item_changes_it(sample: Any, full: Path) -> None:
    before = open_features(full, "pooled")
    old = before.content_digest
    content = sample.hashes()
    content[12, 3] ^= 1
    late = open_features(full, "pooled")
    sample.fill(
        sample.open_writer(full), blocks=[1], status=sample.statuses(failed=[9], cut=[20]), content=content
    )
    assert open_features(full, "pooled").content_digest != old
    assert before.content_digest == old
    with pytest.raises(StaleCacheError, match="written again since it was opened"):
        _ = late.content_digest


def test_it_is_read_when_asked_for_only(full: Path) -> None:
    (full / CHUNK).unlink()
    features = open_features(full, "pooled")
    features.take(np.array([8, 30]))
    with pytest.raises(CorruptCacheError, match=r"content_hash/c\.1\.0' is missing"):
        _ = features.content_digest


def test_a_damaged_content_hash_is_noticed(full: Path) -> None:
    data = bytearray((full / CHUNK).read_bytes())
    data[40] ^= 4
    (full / CHUNK).write_bytes(data)
    with pytest.raises(CorruptCacheError, match=r"content_hash/c\.1\.0' has crc32c"):
        _ = open_features(full, "pooled").content_digest
