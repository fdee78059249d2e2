"""A store's group: what all its arrays share, made whole in one rename."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
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
    lock_path,
    marker_path,
    rows_path,
)
from vlpipe.cache_store.markers import Marker
from vlpipe.cache_store.metadata import guarded, read_json, read_node, sealed
from vlpipe.foundation.files import fsync_folder


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
    def open(cls, store: Path) -> Group:
        """Read a store's group; raises `NotCachedError`, `CorruptCacheError`, `StaleCacheError`."""
        if not store.exists():
            raise NotCachedError(f"there is no store '{store}'; make it with `vlpipe extract`")
        return cls(**read_node(store))

    @property
    def blocks(self) -> range:
        """The numbers of all blocks."""
        return range(-(-self.rows // self.block_rows))

    def span(self, block: int) -> range:
        """The rows of a block."""
        return range(block * self.block_rows, min(self.rows, (block + 1) * self.block_rows))

    def marker(self, store: Path, block: int) -> Marker | None:
        """A block's marker, None when it is not committed; raises `CorruptCacheError`."""
        return Marker.read(store, block, self.span(block), self.ids)


def output_names(store: Path) -> list[str]:
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
        create_array(part / STATUS, group, (), "uint8", {}, group.block_rows)
        create_array(part / CONTENT_HASH, group, (HASH_BYTES,), "uint8", {}, group.block_rows)
        marker_path(part, 0).parent.mkdir()
        lock_path(part, 0).parent.mkdir()
        write_durable(rows_path(part), [table])


def add_output(store: Path, name: str, group: Group, spec: ArraySpec, fingerprint: Fingerprint) -> None:
    """Add an empty array for an output; when another process adds it first, that one stays."""
    chunk_rows = default_chunk_rows(group.block_rows, spec.row_bytes)
    with _made_whole(store / name, store) as part:
        create_array(part, group, spec.shape, spec.dtype, fingerprint, chunk_rows)


def create_array(
    folder: Path, group: Group, shape: tuple[int, ...], dtype: str, fingerprint: Fingerprint, chunk_rows: int
) -> None:
    """Write an array's metadata: zarr's own, then the sealed attribute that guards it."""
    import zarr
    from zarr.codecs import Crc32cCodec

    array: Any = zarr.create_array(
        folder,
        shape=(group.rows, *shape),
        chunks=(chunk_rows, *shape),
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
    """A new folder beside the store, which gets its place, synced, by one rename.

    Where another process was faster, its folder stays and the new one goes.
    """
    part = store.with_name(f".{store.name}.{uuid4().hex}.part")
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
        if not (place / "zarr.json").exists():
            raise
    fsync_folder(place.parent)


def _sync_all(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
