"""Any Zarr v3 reader reads what is written, plain and sharded, to the bit, and refuses a flipped one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr

from vlpipe.cache_store import layout
from vlpipe.cache_store.layout import ArraySpec

Read = Callable[[Path, str], np.ndarray]
BOTH = pytest.mark.parametrize("sharded", [False, True])


def by_zarr(store: Path, name: str) -> np.ndarray:
    return np.asarray(zarr.open_group(store, mode="r")[name][:])


def by_tensorstore(store: Path, name: str) -> np.ndarray:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(store / name)}}
    return np.asarray(tensorstore.open(spec, open=True, read=True).result().read().result())


READERS = pytest.mark.parametrize("read", [by_zarr, by_tensorstore])


@pytest.fixture
def written(sample: Any, store: Path, sharded: bool, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sample, in chunks of a block or in shards of chunks of at most 48 bytes."""
    if sharded:
        monkeypatch.setattr(layout, "CHUNK_BYTES", 48)
        monkeypatch.setattr(layout, "MANY_CHUNKS", 2)
    sample.fill(sample.open_writer(store), blocks=[0, 1, 3, 4])
    return store


@BOTH
@READERS
def test_rows_status_and_content(sample: Any, written: Path, read: Read) -> None:
    committed = np.arange(37) // 8 != 2
    for name, spec in sample.OUTPUTS.items():
        wanted = sample.values(name).astype(spec.dtype)
        wanted[~committed] = 0
        np.testing.assert_array_equal(read(written, name), wanted, strict=True)
    np.testing.assert_array_equal(read(written, "status"), committed.astype(np.uint8), strict=True)
    np.testing.assert_array_equal(read(written, "content_hash")[committed], sample.hashes()[committed])


@BOTH
@READERS
@pytest.mark.parametrize("place", [5, -2])
def test_a_flipped_bit_is_refused(written: Path, read: Read, place: int) -> None:
    """In a row, or in the checksum: of a shard, in its index."""
    path = written / "tokens" / "c.1.0.0"
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"(?i)checksum|crc|digest"):
        read(written, "tokens")


@READERS
def test_a_set_of_many_chunks(sample: Any, store: Path, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes as they are, but for the number of chunks that is many: rows of 6 MB, two a chunk, eight a block."""
    monkeypatch.setattr(layout, "MANY_CHUNKS", 4)
    writer = sample.open_writer(store, {"wide": ArraySpec((3 << 20,))}, rows=11)
    value = np.arange(11, dtype=np.float16)
    for block in writer.missing():
        span = writer.span(block)
        rows = np.broadcast_to(value[span.start : span.stop, None], (len(span), 3 << 20))
        with writer.claim(block):
            writer.write(block, {"wide": rows}, np.ones(len(span), np.uint8), sample.hashes(11)[: len(span)])
    assert sorted(path.name for path in (store / "wide").glob("c.*")) == ["c.0.0", "c.1.0"]
    np.testing.assert_array_equal(read(store, "wide")[:, [0, 77, -1]], np.repeat(value[:, None], 3, axis=1))
