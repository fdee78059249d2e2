"""What a cache holds, as far as markers and metadata tell; chunks are not read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.errors import NotCachedError
from vlpipe.cache_store.fingerprint import Fingerprint
from vlpipe.cache_store.group import Group, output_names
from vlpipe.cache_store.layout import Side
from vlpipe.cache_store.markers import Marker
from vlpipe.cache_store.places import Place, each, place_of, tree_bytes
from vlpipe.foundation.errors import VlpipeError


@dataclass(frozen=True)
class OutputInfo:
    """One output: shape of a row, dtype, rows in committed blocks, and what decides their values."""

    shape: tuple[int, ...]
    dtype: str
    committed_rows: int
    fingerprint: Fingerprint


@dataclass(frozen=True)
class StoreInfo:
    """One store. Counts are of the blocks that are committed for all its outputs; `bytes` is of all its files.

    `problem` is empty, or says why the store cannot be read; only `path` counts then.
    """

    path: Place
    problem: str = ""
    manifest: str = ""
    encoder: str = ""
    side: Side = "image"
    created: str = ""
    rows: int = 0
    ok: int = 0
    failed: int = 0
    cut: int = 0
    absent: int = 0
    bytes: int = 0
    block_rows: int = 0
    constants: Mapping[str, float] = field(default_factory=dict)
    outputs: Mapping[str, OutputInfo] = field(default_factory=dict)


def list_stores(cache: Path) -> list[StoreInfo]:
    """All stores of a cache, by path; one that cannot be read is listed with its problem.

    Raises `NotCachedError` when there is no such folder.
    """
    return [_info_or_problem(path) for path in store_paths(cache)]


def store_paths(cache: Path) -> list[Path]:
    """The folders of all stores of a cache; raises `NotCachedError` when there is no such folder."""
    if not cache.is_dir():
        raise NotCachedError(
            f"there is no cache folder '{cache}'; make one with `vlpipe extract`, or give --cache"
        )
    return sorted(cache.glob("*/[!.]*.zarr"))


def _info_or_problem(path: Path) -> StoreInfo:
    try:
        return store_info(path)
    except VlpipeError as error:
        return StoreInfo(path, problem=str(error))


def store_info(path: str | Place, storage_options: Mapping[str, Any] | None = None) -> StoreInfo:
    """One store, in a local folder or under a URL; `storage_options` go to fsspec's file system.

    Raises `NotCachedError`, `CorruptCacheError`, `StaleCacheError`, `CacheReadError`.
    """
    path = place_of(path, storage_options)
    group = Group.open(path)
    found = each(path, partial(group.marker, path), group.blocks)
    markers = [marker for marker in found if marker]
    outputs = {name: _output_info(path, name, markers) for name in output_names(path)}
    whole = [marker for marker in markers if outputs.keys() <= marker.files.keys()]
    counts = {kind: sum(marker.status[kind] for marker in whole) for kind in ("ok", "failed", "cut")}
    return StoreInfo(
        path=path,
        manifest=group.manifest,
        encoder=group.encoder,
        side=group.side,
        created=group.created,
        rows=group.rows,
        ok=counts["ok"],
        failed=counts["failed"],
        cut=counts["cut"],
        absent=group.rows - sum(counts.values()),
        bytes=tree_bytes(path),
        block_rows=group.block_rows,
        constants=group.constants,
        outputs=outputs,
    )


def _output_info(path: Place, name: str, markers: list[Marker]) -> OutputInfo:
    array = StoredArray.open(path / name)
    rows = sum(marker.stop - marker.start for marker in markers if name in marker.files)
    return OutputInfo(array.shape, array.dtype.name, rows, dict(array.fingerprint))
