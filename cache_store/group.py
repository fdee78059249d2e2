"""A store's group: what all its arrays share, made whole in one rename."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from vlpipe.cache_store.durable import write_durable
from vlpipe.cache_store.errors import NotCachedError, writing
from vlpipe.cache_store.fingerprint import Fingerprint
from vlpipe.cache_store.ids import Ids, file_seal, ids_digest, parquet_bytes
from vlpipe.cache_store.layout import (
    CONTENT_HASH,
    FORMAT,
    HASH_BYTES,
    STATUS,
    ArraySpec,
    Side,
    default_chunk_rows,
    default_file_rows,
    lock_path,
    marker_path,
    rows_path,
)
from vlpipe.cache_store.markers import Marker
from vlpipe.cache_store.metadata import guarded, read_json, read_node, sealed
from vlpipe.cache_store.places import Place
from vlpipe.foundation.files import fsync_folder

BOOKS: Mapping[str, tuple[int, ...]] = {STATUS: (), CONTENT_HASH: (HASH_BYTES,)}  # kept for all outputs, by row


@dataclass(frozen=True)
class Group:
    """A store's own attribute. `ids` is the digest of its ids, `table` that of `rows.parquet`'s bytes."""

    manifest: str
    side: Side
    encoder: str
    constants: Mapping[str, float]
    rows: int
    block_rows: int
    ids: str
    table: str
    created: str
    format: int = FORMAT

    @classmethod
    def of(
        cls, manifest: str, side: Side, encoder: str, constants: Mapping[str, float], ids: Ids, block_rows: int
    ) -> Group:
        """What a store of these things would have; its table is not made yet."""
        created = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(manifest, side, encoder, dict(constants), len(ids), block_rows, ids_digest(ids), "", created)

    @classmethod
    def open(cls, store: Place) -> Group:
        """Read a store's group; raises `NotCachedError`, `CorruptCacheError`, `StaleCacheError`."""
        if not store.exists():
            raise NotCachedError(f"there is no store '{store}'; make it with `vlpipe extract`")
        return cls(**read_node(store, "group", {field.name for field in fields(cls)}))

    @property
    def blocks(self) -> range:
        """The numbers of all blocks."""
        return range(-(-self.rows // self.block_rows))

    def span(self, block: int) -> range:
        """The rows of a block."""
        return range(block * self.block_rows, min(self.rows, (block + 1) * self.block_rows))

    def marker(self, store: Place, block: int) -> Marker | None:
        """A block's marker, None when it is not committed; raises `CorruptCacheError`."""
        return Marker.read(store, block, self.span(block), self.ids)


def output_names(store: Place) -> list[str]:
    """The outputs that a store has arrays for, sorted."""
    names = (path.parent.name for path in store.glob("*/zarr.json"))
    return sorted(name for name in names if name not in (STATUS, CONTENT_HASH))


def create_store(store: Path, group: Group, ids: Ids) -> None:
    """Make a store without outputs; when another process makes it first, that one stays."""
    import zarr

    table = parquet_bytes(ids)
    group = replace(group, table=file_seal(table))
    with _made_whole(store, store) as part:
        zarr.create_group(part, attributes={"vlpipe": sealed(asdict(group))})
        for name, shape in BOOKS.items():
            create_array(part / name, group, shape, "uint8", {}, group.block_rows)
        marker_path(part, 0).parent.mkdir()
        lock_path(part, 0).parent.mkdir()
        write_durable(rows_path(part), [table])


def write_group(store: Path, group: Group) -> None:
    """Write a group's metadata anew, durably; arrays and their rows stay."""
    attributes = {"vlpipe": sealed(asdict(group))}
    document = {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
    write_durable(store / "zarr.json", [json.dumps(document, indent=2).encode()])
    fsync_folder(store)


def add_book(store: Path, name: str, group: Group) -> None:
    """Add the array of status or of content hashes, or the metadata that it has lost."""
    with _made_whole(store / name, store) as part:
        create_array(part, group, BOOKS[name], "uint8", {}, group.block_rows)


def add_output(store: Path, name: str, group: Group, spec: ArraySpec, fingerprint: Fingerprint) -> None:
    """Add an empty array for an output, or the metadata that it has lost.

    When another process adds it first, that one stays.
    """
    chunk_rows = default_chunk_rows(group.block_rows, spec.row_bytes)
    with _made_whole(store / name, store) as part:
        create_array(part, group, spec.shape, spec.dtype, fingerprint, chunk_rows)


def create_array(
    folder: Path, group: Group, shape: tuple[int, ...], dtype: str, fingerprint: Fingerprint, chunk_rows: int
) -> None:
    """Write an array's metadata: zarr's own, then the sealed attribute that guards it."""
    import zarr
    from zarr.codecs import Crc32cCodec

    file_rows = default_file_rows(group.rows, group.block_rows, chunk_rows)
    array: Any = zarr.create_array(
        folder,
        shape=(group.rows, *shape),
        chunks=(chunk_rows, *shape),
        shards=None if file_rows == chunk_rows else (file_rows, *shape),
        chunk_key_encoding={"name": "default", "separator": "."},
        dtype=dtype,
        compressors=[Crc32cCodec()],  # not a compressor, but only this place of zarr's takes it
        fill_value=0,
        zarr_format=3,
        overwrite=True,
    )
    document = cast("dict[str, Any]", read_json(folder / "zarr.json"))
    seal = sealed({"fingerprint": dict(fingerprint), "array": guarded(document)})
    del seal["array"]  # it stands in the metadata itself
    array.attrs.put({"vlpipe": seal})


@contextmanager
def _made_whole(place: Path, store: Path) -> Iterator[Path]:
    """A new folder beside the store, on its disk, which gets its place, synced, by one rename.

    Where another process was faster, its folder stays and the new one goes.
    """
    real = store.resolve()  # a link may stand where a store was that has moved to another disk
    part = real.with_name(f".{real.name}.{uuid4().hex}.part")
    try:
        with writing(store):
            yield part
            _sync_all(part)
            _move(part, place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _move(part: Path, place: Path) -> None:
    try:
        part.rename(place)
    except OSError:
        if not (place / "zarr.json").exists():  # a folder that has lost it; else this raises again
            (part / "zarr.json").replace(place / "zarr.json")
            fsync_folder(place)
    fsync_folder(place.parent)


def _sync_all(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
