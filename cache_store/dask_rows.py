"""Usable rows as a Dask array whose tasks carry places and checksums, never rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import Rows, StoredArray


def dask_rows(array: StoredArray, crcs: Mapping[int, int], usable: NDArray[np.bool_]) -> da.Array:
    """The usable rows of the committed chunks, (rows, *shape), one Dask chunk a stored chunk that has any."""
    parts = {chunk: usable[array.chunk_rows * chunk :][: array.chunk_rows] for chunk in crcs}
    parts = {chunk: rows for chunk, rows in parts.items() if rows.any()}
    if not parts:
        none: da.Array = da.zeros((0, *array.shape), dtype=array.dtype)
        return none
    name = "rows-" + tokenize(str(array.folder), array.seal, dict(crcs), usable)
    rest = (0,) * len(array.shape)
    graph: dict[Any, Any] = {
        (name, number, *rest): (_read, array, chunk, crcs[chunk], np.packbits(rows).tobytes())
        for number, (chunk, rows) in enumerate(parts.items())
    }
    sizes = tuple(int(rows.sum()) for rows in parts.values())
    layers = HighLevelGraph.from_collections(name, graph, dependencies=[])
    chunks = (sizes, *((size,) for size in array.shape))
    found: da.Array = da.Array(layers, name, chunks, dtype=array.dtype)  # type: ignore[no-untyped-call]
    return found


def _read(array: StoredArray, chunk: int, crc: int, usable: bytes) -> Rows:
    """A chunk's usable rows, verified; `usable` holds a bit a row."""
    rows = np.empty((len(array.span(chunk)), *array.shape), array.dtype)
    array.read(chunk, crc, rows)
    chosen = np.unpackbits(np.frombuffer(usable, np.uint8), count=len(rows)).view(np.bool_)
    return rows if chosen.all() else rows[chosen]
