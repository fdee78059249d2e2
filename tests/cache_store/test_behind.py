"""Blocks written in threads: as `write` would have, in the same store, with the same errors."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlpipe.cache_store.behind import DEPTH, WriteBehind
from vlpipe.cache_store.errors import CacheWriteError, LockedError
from vlpipe.cache_store.layout import ArraySpec, lock_path
from vlpipe.cache_store.locks import is_held
from vlpipe.cache_store.reader import open_features
from vlpipe.cache_store.values import BlockRows
from vlpipe.cache_store.writer import StoreWriter

ROWS, BLOCK = 37, 4
VALUES = np.random.default_rng(0).standard_normal((ROWS, 3), np.float32)


def opened(path: Path) -> StoreWriter:
    return StoreWriter.open(
        path, manifest="0" * 64, side="image", encoder="e", ids=[f"r{n}" for n in range(ROWS)], constants={},
        outputs={"x": ArraySpec((3,))}, fingerprints={"x": {"weights": "w"}}, block_rows=BLOCK,
    )  # fmt: skip


def given(writer: StoreWriter, block: int) -> BlockRows:
    span = writer.span(block)
    content = np.repeat(np.arange(span.start, span.stop, dtype=np.uint8)[:, None], 16, 1)
    return BlockRows({"x": VALUES[span.start : span.stop]}, np.ones(len(span), np.uint8), content)


def hand_over(behind: WriteBehind, writer: StoreWriter, block: int, **more: Any) -> None:
    claim = ExitStack()
    assert claim.enter_context(writer.claim(block))
    behind.write(writer, block, writer.check(block, given(writer, block)), claim, **more)


def write_all(writer: StoreWriter, blocks: range, then: type[BaseException] | None = None) -> None:
    with WriteBehind() as behind:
        for block in blocks:
            hand_over(behind, writer, block)
        if then:
            raise then


def files(store: Path) -> dict[str, bytes]:
    found = {str(p.relative_to(store)): p for p in store.rglob("*") if p.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name != "zarr.json"}


def test_the_same_store_as_written_one_after_the_other(tmp_path: Path) -> None:
    one, other = opened(tmp_path / "one"), opened(tmp_path / "other")
    done: list[int] = []
    with WriteBehind() as behind:
        for block in one.missing():
            hand_over(behind, one, block, done=done.append)
            rows = given(other, block)
            with other.claim(block):
                other.write(block, rows.rows, rows.status, rows.content_hash)
    assert files(one.path) == files(other.path)
    assert sorted(done) == list(range(10))
    assert one.missing() == []
    np.testing.assert_array_equal(open_features(one.path, "x").take(np.arange(ROWS)), VALUES.astype(np.float16))


def test_a_claim_is_held_until_its_block_is_committed_and_no_more_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, gate, begun = opened(tmp_path / "s"), threading.Event(), []
    real = StoreWriter.commit

    def commit(self: StoreWriter, block: int, rows: BlockRows) -> None:
        begun.append(block)
        assert gate.wait(10)
        real(self, block, rows)

    monkeypatch.setattr(StoreWriter, "commit", commit)
    with WriteBehind() as behind:
        for block in range(DEPTH):
            hand_over(behind, writer, block)  # does not wait
        late = threading.Thread(target=hand_over, args=(behind, writer, DEPTH))
        late.start()
        time.sleep(0.05)
        assert sorted(begun) == list(range(DEPTH))
        assert late.is_alive()
        assert all(is_held(lock_path(writer.path, block)) for block in range(DEPTH))
        gate.set()
        late.join()
    assert not any(is_held(lock_path(writer.path, block)) for block in range(DEPTH + 1))
    assert writer.missing() == list(range(DEPTH + 1, 10))


def test_an_error_comes_with_a_later_block_or_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, real = opened(tmp_path / "s"), StoreWriter.commit

    def commit(self: StoreWriter, block: int, rows: BlockRows) -> None:
        if block == 1:
            raise CacheWriteError("the disk is full")
        real(self, block, rows)

    monkeypatch.setattr(StoreWriter, "commit", commit)
    with pytest.raises(CacheWriteError, match="full"):
        write_all(writer, range(2))
    assert writer.missing() == list(range(1, 10))
    with pytest.raises(CacheWriteError, match="full"):
        write_all(writer, range(1, 10))
    assert {1, *range(1 + DEPTH, 10)} <= {*writer.missing()}  # none is begun after it
    assert not any(is_held(lock_path(writer.path, block)) for block in range(10))


def test_what_was_given_before_an_interruption_is_committed(tmp_path: Path) -> None:
    writer = opened(tmp_path / "s")
    with pytest.raises(KeyboardInterrupt):
        write_all(writer, range(3), KeyboardInterrupt)
    assert writer.missing() == list(range(3, 10))


def test_commit_needs_a_claim(tmp_path: Path) -> None:
    writer = opened(tmp_path / "s")
    with writer.claim(0):
        rows = writer.check(0, given(writer, 0))
    with pytest.raises(LockedError, match="claim"):
        writer.commit(0, rows)
    with pytest.raises(LockedError, match="claim"):
        writer.check(0, given(writer, 0))
