"""What a store would be, and how much it would grow, with nothing made: for plans, and to refuse a full disk."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.errors import CacheWriteError
from vlpipe.cache_store.fingerprint import Fingerprint
from vlpipe.cache_store.group import BOOKS, Group
from vlpipe.cache_store.ids import Ids, parquet_bytes
from vlpipe.cache_store.layout import (
    ArraySpec,
    default_chunk_rows,
    default_file_rows,
    lock_path,
    marker_path,
    rows_path,
)
from vlpipe.cache_store.markers import Files, Marker
from vlpipe.cache_store.opening import checked_group
from vlpipe.foundation.console import size_words

ARRAY_BYTES, GROUP_BYTES = 640, 120  # of a zarr.json, beside what it holds of ours
SEAL = "0" * 64  # of metadata that is not made yet
_CRC = 1 << 31  # one that is as long, in digits, as most are
Arrays = Mapping[str, StoredArray]


@dataclass(frozen=True)
class Growth:
    """What is added to a store: bytes, and files. Files that are written again count for what they grow by."""

    bytes: int
    files: int


def preview(
    path: Path, asked: Group, ids: Ids, outputs: Mapping[str, ArraySpec], fingerprints: Mapping[str, Fingerprint]
) -> tuple[Group, dict[str, StoredArray], list[str]]:
    """What `open_for_writing` gives, with arrays as they would be where they are not.

    Raises as it does, and `CorruptCacheError` for damaged metadata of an array, which it would write anew.
    """
    group = checked_group(path, asked, outputs, fingerprints) if path.exists() else asked
    arrays = {
        name: _made_or_planned(path / name, group, spec.shape, spec.dtype, fingerprints[name])
        for name, spec in outputs.items()
    }
    return group, arrays | {name: _made_or_planned(path / name, group, shape) for name, shape in BOOKS.items()}, []


def _made_or_planned(
    folder: Path,
    group: Group,
    shape: tuple[int, ...],
    dtype: str = "uint8",
    fingerprint: Fingerprint | None = None,
) -> StoredArray:
    """An array as it is, or would be; status and content hashes have no fingerprint, and a chunk a block."""
    if folder.exists():
        return StoredArray.open(folder)
    kind: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
    chunk = group.block_rows
    if fingerprint is not None:
        chunk = default_chunk_rows(chunk, prod(shape) * kind.itemsize)
    file = default_file_rows(group.rows, group.block_rows, chunk)
    return StoredArray(folder, group.rows, shape, kind, chunk, file, fingerprint or {}, SEAL)


def growth(path: Path, group: Group, ids: Ids, arrays: Arrays, blocks: Iterable[int]) -> Growth:
    """How much a store grows when these blocks are written for these arrays, status and content hashes too."""
    size = files = 0
    for file, expected in _to_be_written(path, group, ids, arrays, blocks):
        try:
            size += max(0, expected - file.stat().st_size)
        except (FileNotFoundError, NotADirectoryError):
            size += expected
            files += 1
    return Growth(size, files)


def check_room(store: Path, more: Growth) -> None:
    """Raise `CacheWriteError` where the disk surely cannot hold what a store grows by."""
    free = free_bytes(store)
    if more.bytes > free:
        raise CacheWriteError(
            f"'{store}' would grow by {size_words(more.bytes)}, its disk has {size_words(free)} free; free some, "
            "give another --cache, or ask for fewer outputs or --dtype float16"
        )


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write where a path is, or would be made."""
    place = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def _to_be_written(
    path: Path, group: Group, ids: Ids, arrays: Arrays, blocks: Iterable[int]
) -> Iterator[tuple[Path, int]]:
    """Every file and its size; of small ones the size is right to some bytes."""
    if not path.exists():
        yield path / "zarr.json", GROUP_BYTES + len(_indented(asdict(group)))
        yield rows_path(path), len(parquet_bytes(ids))
    for array in arrays.values():
        if array.seal == SEAL:
            yield Path(str(array.folder)) / "zarr.json", ARRAY_BYTES + len(_indented(array.fingerprint))
    for block in blocks:
        span = group.span(block)
        for array in arrays.values():
            yield from ((Path(str(file)), size) for file, size in array.stored_bytes(span).items())
        yield marker_path(path, block), len(_marker(block, group, arrays).encoded())
        yield lock_path(path, block), 0


def _marker(block: int, group: Group, arrays: Arrays) -> Marker:
    span = group.span(block)
    files = {name: Files(array.seal, [_CRC for _ in array.chunks(span)]) for name, array in arrays.items()}
    return Marker(block, span.start, span.stop, group.ids, {"cut": 0, "failed": 0, "ok": len(span)}, files)


def _indented(content: Any) -> str:
    """As Zarr writes what we keep in its metadata."""
    return json.dumps({"attributes": {"vlpipe": content}}, indent=2)
