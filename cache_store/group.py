"""A store's group: what all its arrays share, made whole in one rename."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

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
    lock_path,
    marker_path,
    rows_path,
)
from vlpipe.cache_store.layout import default_chunk_rows as chunk_rows_of
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
        """The group of a new store."""
        created = datetime.now(UTC).isoformat(timespec="seconds")
        table = file_seal(parquet_bytes(ids))
        return cls(manifest, side, encoder, dict(constants), len(ids), block_rows, ids_digest(ids), table, created)

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

    with writing(store):
        part = store.with_name(f".{store.name}.{os.getpid()}.part")
        zarr.create_group(part, attributes={"vlpipe": sealed(asdict(group))})
        create_array(part / STATUS, group, (), "uint8", {}, group.block_rows)
        create_array(part / CONTENT_HASH, group, (HASH_BYTES,), "uint8", {}, group.block_rows)
        marker_path(part, 0).parent.mkdir()
        lock_path(part, 0).parent.mkdir()
        write_durable(rows_path(part), [parquet_bytes(ids)])
        _move_whole(part, store)


def add_output(store: Path, name: str, group: Group, spec: ArraySpec, fingerprint: Fingerprint) -> None:
    """Add an empty array for an output; when another process adds it first, that one stays."""
    chunk_rows = chunk_rows_of(group.block_rows, spec.row_bytes)
    with writing(store):
        part = store.with_name(f".{store.name}.{name}.{os.getpid()}.part")
        create_array(part, group, spec.shape, spec.dtype, fingerprint, chunk_rows)
        _move_whole(part, store / name)


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


def _move_whole(part: Path, place: Path) -> None:
    """Sync a folder to disk and rename it; a folder that is there already stays, and the new one goes."""
    for path in [*part.rglob("*"), part]:
        if path.is_dir():
            fsync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    try:
        part.rename(place)
    except OSError:
        if not (place / "zarr.json").exists():
            raise
        shutil.rmtree(part)
    fsync_folder(place.parent)
