"""Several processes at one store."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlpipe.cache_store import group as groups
from vlpipe.cache_store import locks, snapshots
from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.errors import LockedError, StaleCacheError
from vlpipe.cache_store.reader import open_features
from vlpipe.cache_store.verify import verify_store

HOLDER = """
import sys, time
from pathlib import Path
from vlpipe.cache_store.locks import exclusive
with exclusive(Path(sys.argv[1])) as held:
    print(held, flush=True)
    time.sleep(60)
"""


def test_a_block_has_one_writer_and_a_dead_one_is_no_obstacle(sample: Any, store: Path) -> None:
    writer = sample.open_writer(store)
    lock = store / "status" / "locks" / "1"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "True\n"
        with writer.claim(1) as mine:
            assert not mine
        with writer.claim(0) as mine:
            assert mine
        holder.send_signal(signal.SIGKILL)
        holder.wait(30)
    assert lock.exists()
    assert sample.fill(writer) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("refusal", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_folder_that_cannot_lock_is_read_but_not_written(
    sample: Any, full: Path, contents: Any, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    """As some network folders do."""

    def flock(*_: Any) -> None:
        raise OSError(refusal, os.strerror(refusal))

    (full / "status" / "blocks" / "1.json").unlink()
    before = contents(full)
    writer = sample.open_writer(full)
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(LockedError, match=r"locks/1' cannot be locked \(.*\); write the cache to a folder on a"):
        sample.fill(writer)
    assert contents(full) == before
    assert open_features(full, "pooled").usable.sum() == 29
    assert not locks._held


def test_verify_while_a_block_is_written_again_and_again(
    sample: Any, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, between the marker and the rows that it names, and done before anyone asks who is at work."""
    writer, contents = sample.open_writer(full), iter(range(1, 4))
    read = StoredArray.read

    def torn(array: StoredArray, chunk: int, crc: int, out: Any) -> None:
        if (array.folder.name, chunk) == ("content_hash", 1) and (number := next(contents, 0)):
            sample.fill(writer, blocks=[1], content=sample.hashes() + np.uint8(number))
        read(array, chunk, crc, out)

    monkeypatch.setattr(StoredArray, "read", torn)
    assert verify_store(full) == []
    assert next(contents, None) is None


def test_two_writers_in_one_process(sample: Any, store: Path) -> None:
    first, second = sample.open_writer(store), sample.open_writer(store)
    assert first.missing() == second.missing() == [0, 1, 2, 3, 4]
    with first.claim(2) as mine, second.claim(2) as too:
        assert (mine, too) == (True, False)
    sample.fill(first, blocks=[2])
    with second.claim(2) as mine:
        assert not mine  # done since it was listed
    assert second.missing() == [0, 1, 3, 4]


def test_a_forked_worker_does_not_keep_a_dead_parents_lock(sample: Any, store: Path) -> None:
    first, second = sample.open_writer(store), sample.open_writer(store)
    started, go = os.pipe(), os.pipe()
    with first.claim(1):
        child = os.fork()
        if child == 0:
            os.write(started[1], b"x")
            os.read(go[0], 1)
            os._exit(0)
        try:
            os.read(started[0], 1)
            os.close(locks._held.pop())  # what the system does when the parent dies
            with second.claim(1) as mine:
                assert mine
        finally:
            os.write(go[1], b"x")
            os.waitpid(child, 0)
    for handle in (*started, *go):
        os.close(handle)


def test_who_creates_second_opens_the_first(sample: Any, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process makes store and output between our look and our rename."""
    real = groups._move

    def late(part: Path, place: Path) -> None:
        monkeypatch.setattr(groups, "_move", real)
        sample.fill(sample.open_writer(store))
        real(part, place)

    monkeypatch.setattr(groups, "_move", late)
    writer = sample.open_writer(store)
    assert writer.missing() == []
    assert [path.name for path in store.parent.iterdir()] == [store.name]


def test_two_processes_fill_one_store(sample: Any, store: Path, contents: Any) -> None:
    reference = store.with_name("reference.zarr")
    sample.fill(sample.open_writer(reference))
    command = [sys.executable, str(sample.SCRIPT), str(store), "0", "0.01"]
    both = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert sample.open_writer(store).missing() == []
    assert contents(store) == contents(reference)


def test_a_block_written_again_is_not_called_damaged(sample: Any, full: Path) -> None:
    features = open_features(full, "pooled", strategy="mapped")
    sample.fill(sample.open_writer(full), blocks=[1])  # row 9 no longer fails
    with pytest.raises(StaleCacheError, match="written again since it was opened"):
        features.take(np.array([8]))


def test_a_block_replaced_between_marker_and_status(
    sample: Any, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader gets the marker, a writer replaces the block, the reader gets the status."""
    real = groups.Group.marker
    outdated = [real(groups.Group.open(full), full, 1)]
    sample.fill(sample.open_writer(full), blocks=[1])  # row 9 no longer fails

    def late(group: groups.Group, store: Path, block: int) -> Any:
        return outdated.pop() if block == 1 and outdated else real(group, store, block)

    monkeypatch.setattr(groups.Group, "marker", late)
    assert open_features(full, "pooled").usable.all()
    assert not outdated


def test_a_block_replaced_between_marker_and_rows(
    sample: Any, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = snapshots.committed_blocks
    outdated = [real(full, groups.Group.open(full), StoredArray.open(full / "pooled"))]
    sample.fill(sample.open_writer(full), blocks=[1])  # row 9 no longer fails

    def late(*given: Any) -> Any:
        return outdated.pop() if outdated else real(*given)

    monkeypatch.setattr(snapshots, "committed_blocks", late)
    assert open_features(full, "pooled", strategy="resident").usable.all()


def test_a_reader_during_a_write_sees_committed_rows_only(sample: Any, store: Path) -> None:
    """Rewrites every block again and again while a reader opens and reads."""
    writer = sample.open_writer(store)
    sample.fill(writer)
    stop = threading.Event()
    failed = [sample.statuses(failed=[9, 33]), sample.statuses()]

    def rewrite() -> None:
        turn = 0
        while not stop.is_set():
            sample.fill(writer, blocks=range(5), status=failed[turn % 2])
            turn += 1

    thread = threading.Thread(target=rewrite)
    thread.start()
    wanted = sample.values("pooled").astype(np.float16)
    seen = set()
    try:
        until = time.monotonic() + 20
        turns = 0
        while (turns < 150 or len(seen) < 2) and time.monotonic() < until:  # on a busy machine the writer is slow
            turns += 1
            features = open_features(store, "pooled", strategy="resident")
            good = np.flatnonzero(features.usable)
            np.testing.assert_array_equal(features.take(good), wanted[good])
            assert len(features) == 37
            seen.add(len(good))
    finally:
        stop.set()
        thread.join()
    assert len(seen) > 1
