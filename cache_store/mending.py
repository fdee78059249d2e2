"""Damaged metadata and ids written anew, where what is asked for proves to be what the store holds.

Nothing here touches a row. Each function returns one line for what it mended, none where nothing was damaged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.durable import remove_durable, write_durable
from vlpipe.cache_store.errors import CorruptCacheError, writing
from vlpipe.cache_store.fingerprint import Fingerprint
from vlpipe.cache_store.group import Group, add_book, add_output, output_names, write_group
from vlpipe.cache_store.ids import Ids, file_seal, parquet_bytes, read_ids
from vlpipe.cache_store.layout import CONTENT_HASH, STATUS, ArraySpec, lock_path, marker_path, rows_path
from vlpipe.cache_store.markers import Marker
from vlpipe.cache_store.metadata import read_json, unsealed


def mend_group(path: Path, asked: Group, ids: Ids, outputs: Collection[str]) -> tuple[Group, list[str]]:
    """Write a damaged group anew from what is asked for, whose outputs do not differ from the store's.

    Its markers, or else its table of ids, must be of the asked ids, and one of the outputs must be there to tell
    that the encoder is the same: raises `CorruptCacheError` where they are not.
    """
    table, names = parquet_bytes(ids), {*output_names(path)}
    if not _is_of(path, asked, table) or (names and not names & {*outputs}):
        return Group.open(path), []
    size = block_rows_of(path, asked.rows) or asked.block_rows
    group = replace(asked, block_rows=size, table=file_seal(table))
    with writing(path):
        write_group(path, group)
    return group, ["zarr.json was damaged: written anew from what is asked, no row is lost"]


def mend_folders(path: Path) -> None:
    """Make folders that a copy of the store has left out, because they were empty."""
    with writing(path):
        for folder in (marker_path(path, 0).parent, lock_path(path, 0).parent):
            folder.mkdir(parents=True, exist_ok=True)


def mend_ids(path: Path, group: Group, ids: Ids) -> list[str]:
    """Write a damaged table of ids anew: the asked ids are proved to be the store's by their digest.

    Another version of the Parquet library writes other bytes, which the group's seal then follows.
    """
    try:
        read_ids(path, group.table, group.rows)
        return []
    except CorruptCacheError:
        table = parquet_bytes(ids)
    with writing(path):
        write_durable(rows_path(path), [table])
        if file_seal(table) != group.table:
            write_group(path, replace(group, table=file_seal(table)))
    return [f"{rows_path(path).relative_to(path)} was damaged: written anew, no row is lost"]


def mend_books(path: Path, group: Group) -> list[str]:
    """Write damaged metadata of status or content hashes anew: the group says what they are."""
    found = []
    for name in (STATUS, CONTENT_HASH):
        if _is_damaged(path / name):
            add_book(path, name, group)
            found += _told(path, name, group)
    return found


def mend_output(path: Path, name: str, group: Group, spec: ArraySpec, fingerprint: Fingerprint) -> list[str]:
    """Write an output's damaged metadata anew from what is asked for.

    The rows of blocks whose marker has recorded its seal are kept; those of others, if any, are in doubt.
    """
    if not (path / name).exists() or not _is_damaged(path / name):
        return []
    add_output(path, name, group, spec, fingerprint)
    return _told(path, name, group)


def markers_of(path: Path) -> Iterator[Marker]:
    """All markers that are whole, whatever rows and ids they are of."""
    for file in sorted(marker_path(path, 0).parent.glob("*.json")):
        try:
            content = unsealed(read_json(file))
        except FileNotFoundError:  # a writer is at its block
            continue
        found = None if content is None else Marker.of(content)
        if found is not None and file.stem == str(found.block):
            yield found


def block_rows_of(path: Path, rows: int) -> int | None:
    """Rows per block, told without the group: by the status array, else by the markers; None where none tells."""
    try:
        status = StoredArray.open(path / STATUS)
        if status.rows == rows:
            return status.chunk_rows
    except CorruptCacheError:
        pass
    for marker in markers_of(path):
        if marker.stop < rows:
            return marker.stop - marker.start
        if marker.block:
            return marker.start // marker.block
    return None


def _is_of(path: Path, asked: Group, table: bytes) -> bool:
    if any(marker.ids == asked.ids for marker in markers_of(path)):
        return True
    try:
        return rows_path(path).read_bytes() == table
    except OSError:
        return False


def _is_damaged(folder: Path) -> bool:
    try:
        StoredArray.open(folder)
        return False
    except CorruptCacheError:
        with writing(folder):
            remove_durable(folder / "zarr.json")
        return True


def _told(path: Path, name: str, group: Group) -> list[str]:
    seal = StoredArray.open(path / name).seal
    named = [marker for marker in markers_of(path) if marker.ids == group.ids and name in marker.files]
    lost = sum(marker.stop - marker.start for marker in named if marker.files[name].seal != seal)
    kept = f"{lost} rows were committed with another and are lost" if lost else "no row is lost"
    return [f"{name}/zarr.json was damaged: written anew from what is asked, {kept}"]
