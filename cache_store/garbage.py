"""What of a cache nothing refers to: leftovers of killed writers, and stores that nobody asks for any more.

Whatever is not vlpipe's, is in use by a writer, or is a symbolic link stays, and is reported with the reason. A
reader of a deleted store keeps what it has mapped, as the system frees a file when the last one lets go of it, and
finds the rest missing.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from stat import S_ISDIR
from uuid import uuid4

from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.errors import CacheWriteError, NotCachedError
from vlpipe.cache_store.group import Group, output_names
from vlpipe.cache_store.layout import CONTENT_HASH, STATUS, lock_path, marker_path, rows_path
from vlpipe.cache_store.locks import exclusive, is_held
from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.files import fsync_folder

QUIET = (
    3600.0  # seconds without a write after which an unfinished file outside of a locked block is a dead writer's
)
OF_A_MANIFEST = re.compile(r"[0-9a-f]{12}")
UNFINISHED = re.compile(r"\..+\.zarr\.[0-9a-f]{32}\.part|\..+\.failures\.jsonl\.\d+\.part")
FAILURES = re.compile(r"(.+\.(?:image|text))\.failures\.jsonl")

Wanted = Callable[[Group, Path], bool]


@dataclass(frozen=True)
class Item:
    """A file or folder, why it goes or stays, and its bytes."""

    path: Path
    why: str
    bytes: int


@dataclass(frozen=True)
class Swept:
    """What was deleted, or would be, and what looked like garbage but stayed."""

    deleted: list[Item]
    kept: list[Item]

    @property
    def bytes(self) -> int:
        """Bytes of all that was deleted, or would be."""
        return sum(item.bytes for item in self.deleted)


def sweep(cache: Path, wanted: Wanted | None = None, *, dry_run: bool = False) -> Swept:
    """Delete what nothing refers to; with `dry_run` only find it.

    `wanted` says of a store (its group, its path) whether something refers to it; None keeps all stores. Raises
    `NotCachedError` when there is no such folder, `CacheWriteError`.
    """
    if not cache.is_dir():
        raise NotCachedError(f"there is no cache folder '{cache}'; give --cache")
    broom = _Broom(dry_run)
    for folder in sorted(path for path in cache.iterdir() if OF_A_MANIFEST.fullmatch(path.name)):
        if folder.is_symlink():
            broom.keep(folder, "is a symbolic link")
        elif folder.is_dir():
            with _deleting(folder):
                _sweep_folder(folder, wanted, broom)
    return Swept(broom.deleted, broom.kept)


@contextmanager
def _deleting(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CacheWriteError(
            f"cannot delete in '{folder}': {error.strerror or error}; what is left is as it was: mend that and "
            "run the same command again, or only list with --dry-run"
        ) from error


class _Broom:
    """Deletes, or only says what it would, and keeps account of both."""

    def __init__(self, dry_run: bool) -> None:
        self.dry_run = dry_run
        self.deleted: list[Item] = []
        self.kept: list[Item] = []

    def keep(self, path: Path, why: str) -> None:
        """Leave something that looked like garbage."""
        self.kept.append(Item(path, why, 0))

    def delete(self, path: Path, why: str) -> None:
        """A file, or a folder with all in it; a store vanishes whole, also from who just opens it."""
        self.deleted.append(Item(path, why, _bytes(path)))
        if self.dry_run:
            return
        if path.is_dir() and not path.is_symlink():
            gone = path if path.suffix == ".part" else path.rename(_hidden(path))
            shutil.rmtree(gone)
        else:
            path.unlink(missing_ok=True)


def _hidden(store: Path) -> Path:
    """A name that the next sweep recognises, should this one be killed in between."""
    return store.with_name(f".{store.name}.{uuid4().hex}.part")


def _sweep_folder(folder: Path, wanted: Wanted | None, broom: _Broom) -> None:
    before = len(broom.deleted)
    for path in sorted(folder.iterdir()):
        if UNFINISHED.fullmatch(path.name):
            _delete_quiet(path, "left by a killed writer", broom)
        elif path.suffix == ".zarr" and not path.name.startswith("."):
            _sweep_store(path, wanted, broom)
    for path in sorted(folder.iterdir()):  # now that stores are gone
        found = FAILURES.fullmatch(path.name)
        if found and not _stands(folder / f"{found[1]}.zarr", broom):
            broom.delete(path, "lists failures of a store that is gone")
    if not broom.dry_run and len(broom.deleted) > before:  # another empty folder may be a writer's, just made
        if any(folder.iterdir()):
            fsync_folder(folder)
        else:
            folder.rmdir()


def _stands(store: Path, broom: _Broom) -> bool:
    return store.exists() and not any(item.path == store for item in broom.deleted)


def _delete_quiet(path: Path, why: str, broom: _Broom) -> None:
    if path.is_symlink():
        broom.keep(path, "is a symbolic link")
    elif (age := _quiet(path)) < QUIET:
        broom.keep(path, _at_work(age))
    elif path.exists():
        broom.delete(path, why)


def _at_work(age: float) -> str:
    return f"is not finished, and was written {age / 60:.0f} minutes ago: its writer may be at work"


def _sweep_store(store: Path, wanted: Wanted | None, broom: _Broom) -> None:
    if store.is_symlink():
        return broom.keep(store, "is a symbolic link")
    try:
        group = Group.open(store)
        if wanted is None or wanted(group, store):
            return _sweep_inside(store, group, broom)
        if (age := _quiet(store / STATUS)) < QUIET and not _is_finished(store, group):
            return broom.keep(store, _at_work(age))
        if any(map(is_held, _locks(store))):
            return broom.keep(store, "is being written")
    except VlpipeError as error:
        return broom.keep(store, str(error))
    return broom.delete(store, "no manifest or run that was named refers to it")


def _is_finished(store: Path, group: Group) -> bool:
    """Whether all blocks are committed: between two blocks a writer holds no lock."""
    return all(marker_path(store, block).exists() for block in group.blocks)


def _locks(store: Path) -> Iterator[Path]:
    """The lock files that there are: a block without one never had a writer."""
    return (path for path in sorted(lock_path(store, 0).parent.glob("[0-9]*")) if path.name.isdigit())


def _sweep_inside(store: Path, group: Group, broom: _Broom) -> None:
    """What killed writers left in a store: files of blocks that are not committed, and unfinished ones.

    A block is looked at first and locked only for deleting: a writer that finds it locked would pass it by.
    """
    if (store / STATUS).is_symlink():
        return broom.keep(store / STATUS, "is a symbolic link")
    names = (*output_names(store), STATUS, CONTENT_HASH)
    arrays = [StoredArray.open(store / name) for name in names if not (store / name).is_symlink()]
    for lock in _locks(store):
        block = int(lock.name)
        if block in group.blocks and _of_block(store, group, arrays, block):
            with exclusive(lock) as held:
                for path, why in _of_block(store, group, arrays, block).items() if held else ():
                    broom.delete(path, why)
    metadata = (rows_path(store), *(store / name / "zarr.json" for name in (".", *names)))
    for path in filter(Path.is_file, map(_unfinished, metadata)):
        _delete_quiet(path, "left by a killed writer", broom)
    return None


def _of_block(store: Path, group: Group, arrays: list[StoredArray], block: int) -> dict[Path, str]:
    """The files of a block that are garbage unless its writer is at work, each with the reason."""
    span, marker, place = group.span(block), group.marker(store, block), marker_path(store, block)
    found = {_unfinished(place): "left by a killed writer"}
    for array in arrays:
        for path in {Path(str(array.path(chunk))) for chunk in array.chunks(span)}:
            found[_unfinished(path)] = "left by a killed writer"
            if marker is None or array.folder.name not in marker.files:
                found[path] = f"is of block {block}, which was never committed"
    return {path: why for path, why in sorted(found.items()) if path.is_file()}


def _unfinished(path: Path) -> Path:
    """What `durable.write_durable` calls a file until it is whole."""
    return path.with_name(f"{path.name}.part")


def _stats(path: Path) -> Iterator[os.stat_result]:
    """A file, or a folder with all in it, links as such; what goes away meanwhile is left out."""
    below = (Path(top, name) for top, folders, files in os.walk(path) for name in (*folders, *files))
    for part in chain([path], below):
        with suppress(FileNotFoundError):
            yield part.lstat()


def _quiet(path: Path) -> float:
    """Seconds since something in a folder, or a file, was last written."""
    return time.time() - max((found.st_mtime for found in _stats(path)), default=time.time())


def _bytes(path: Path) -> int:
    return sum(found.st_size for found in _stats(path) if not S_ISDIR(found.st_mode))
