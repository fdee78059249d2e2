"""Files of a store that are whole or absent, under names that a killed writer's successor overwrites."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import TypeVar

from vlpipe.foundation.files import fsync_folder

Pieces = Iterable[bytes | memoryview]
Item = TypeVar("Item")
Result = TypeVar("Result")
SYNCS = 4
PIECE_BYTES = 1 << 20  # of larger files; small enough to stay in the processor's cache


def write_durable(path: Path, pieces: Pieces) -> None:
    """Write, fsync and rename into place; the rename itself lasts once its folder is fsynced.

    The unfinished file's name is fixed, unlike `foundation.files.write_atomic`'s: only a block's lock holder
    writes it, and what a killed one left is overwritten instead of lying around. The folder must exist: a store
    that was deleted under a running writer is an error, not made anew without its metadata.
    """
    part = path.with_name(path.name + ".part")
    with part.open("wb", buffering=0) as file:
        for piece in pieces:
            _write_all(file.fileno(), memoryview(piece))
            _begin_to_flush(file, len(piece))
        os.fsync(file.fileno())
    part.replace(path)


def _write_all(handle: int, data: memoryview) -> None:
    """A single write may be cut short (at 2 GiB, or by a full disk, which the next call then reports)."""
    while data.nbytes:
        data = data[os.write(handle, data) :]


def _begin_to_flush(file: FileIO, size: int) -> None:
    """Let Linux write what was just written to the disk, while the next piece is copied: the fsync waits less.

    Of the file in memory it forgets only what is on disk already, so nearly all stays there for readers.
    """
    if size >= PIECE_BYTES and hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # it is advice: a file system that takes none is as good
            os.posix_fadvise(file.fileno(), file.tell() - size, size, os.POSIX_FADV_DONTNEED)


def in_parallel(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The work's results, in order, by a few threads: a sync waits for the disk, and disks take several at a time.

    An error is raised once all have ended, so that nothing is written any more.
    """
    with ThreadPoolExecutor(SYNCS - 1) as pool:  # which starts no thread before it needs one
        others = [pool.submit(work, item) for item in items[1:]]
        return [work(item) for item in items[:1]] + [other.result() for other in others]


def remove_durable(path: Path) -> None:
    """Delete a file, and make that last."""
    try:
        path.unlink()
    except FileNotFoundError:
        return
    fsync_folder(path.parent)
