"""Files that are whole or absent, and several at a time."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

from vlpipe.cache_store.chunk_files import encoded
from vlpipe.cache_store.durable import PIECE_BYTES, in_parallel, write_durable


def test_results_come_in_order_and_from_several_threads() -> None:
    meeting = threading.Barrier(3, timeout=20)

    def work(number: int) -> int:
        meeting.wait()
        return number * number

    assert in_parallel(work, range(3)) == [0, 1, 4]
    assert in_parallel(lambda _: threading.current_thread().name, [0]) == [threading.current_thread().name]


def test_an_error_comes_when_nothing_is_written_any_more() -> None:
    done = []

    def work(number: int) -> None:
        if number == 0:
            raise OSError("full")
        time.sleep(0.05)
        done.append(number)

    with pytest.raises(OSError, match="full"):
        in_parallel(work, range(4))
    kept = list(done)
    time.sleep(0.1)
    assert done == kept


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5])
def test_a_chunk_in_pieces_is_the_chunk(tmp_path: Path, size: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    crcs: list[int] = []
    write_durable(tmp_path / "c", encoded(data, size + 7 + 4, crcs))
    plain = data.tobytes() + bytes(7)
    assert crcs == [google_crc32c.value(plain)]
    assert (tmp_path / "c").read_bytes() == plain + crcs[0].to_bytes(4, "little")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("most", [1000, PIECE_BYTES])
def test_writes_that_are_cut_short_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """As those of more than 2 GiB are, and with an early flush or none."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:most]))
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    data = np.arange(PIECE_BYTES // 4 + 300, dtype=np.uint32).tobytes()
    write_durable(tmp_path / "c", [memoryview(data), b"end"])
    assert (tmp_path / "c").read_bytes() == data + b"end"


def test_a_file_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        seen.append((sorted(path.name for path in tmp_path.iterdir()), os.fstat(handle).st_size))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_durable(tmp_path / "c", [b"abc", b"de"])
    assert seen == [(["c.part"], 5)]
