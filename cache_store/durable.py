"""Files of a store that are whole or absent, under names that a killed writer's successor overwrites."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from vlpipe.foundation.files import fsync_folder

Pieces = Iterable[bytes | memoryview]


def write_durable(path: Path, pieces: Pieces) -> None:
    """Write, fsync and rename into place; the rename itself lasts once `sync_folders` was called on the path.

    The unfinished file's name is fixed, unlike `foundation.files.write_atomic`'s: only a block's lock holder
    writes it, and what a killed one left is overwritten instead of lying around. The folder must exist: a store
    that was deleted under a running writer is an error, not made anew without its metadata.
    """
    part = path.with_name(path.name + ".part")
    with part.open("wb", buffering=0) as file:
        for piece in pieces:
            _write_all(file.fileno(), memoryview(piece))
        os.fsync(file.fileno())
    part.replace(path)


def _write_all(handle: int, data: memoryview) -> None:
    """A single write may be cut short (at 2 GiB, or by a full disk, which the next call then reports)."""
    while data.nbytes:
        data = data[os.write(handle, data) :]


def sync_folders(paths: Iterable[Path], top: Path) -> None:
    """Make files' names last: fsync every folder between each of them and `top`, once."""
    folders = {parent for path in paths for parent in path.parents if parent.is_relative_to(top)}
    for folder in sorted(folders, reverse=True):
        fsync_folder(folder)


def remove_durable(path: Path) -> None:
    """Delete a file, and make that last."""
    try:
        path.unlink()
    except FileNotFoundError:
        return
    fsync_folder(path.parent)
