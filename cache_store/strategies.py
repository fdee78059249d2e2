"""How rows get from chunk files to the caller: from memory, or gathered from mapped files.

Both copy whole rows: viewed as one opaque item each, a row costs one memory copy, whatever its shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import Rows, StoredArray

# Linux grants a process 65,530 mappings: beyond this many, up to 256 GiB, a set drops its oldest.
MAPPED_CHUNKS = 16_384


def _opaque(rows: Rows) -> NDArray[np.void]:
    """Contiguous rows as one axis of opaque items."""
    flat = rows.reshape(len(rows), -1)
    return flat.view(np.dtype((np.void, flat.shape[1] * flat.itemsize)))[:, 0]


class Resident:
    """All committed chunks in one array, read once, each verified."""

    name = "resident"

    def __init__(self, array: StoredArray, crcs: Mapping[int, int]) -> None:
        rows = np.zeros((array.rows, *array.shape), array.dtype)  # rows that are not committed cost no memory
        for chunk, crc in crcs.items():
            span = array.span(chunk)
            array.read(chunk, crc, rows[span.start : span.stop])
        self._rows = _opaque(rows)

    def take(self, positions: NDArray[Any], out: Rows) -> None:
        """Fill `out` with the rows at valid positions."""
        if len(positions):
            np.take(self._rows, positions, out=_opaque(out), mode="clip")  # another mode would buffer `out`


class Mapped:
    """Chunk files, mapped when first used, verified whenever mapped; the system's page cache is the only copy."""

    name = "mapped"

    def __init__(self, array: StoredArray, crcs: Mapping[int, int]) -> None:
        self._array = array
        self._crcs = crcs
        self._chunks: dict[int, NDArray[np.void]] = {}

    def take(self, positions: NDArray[Any], out: Rows) -> None:
        """Fill `out` with the rows at valid positions, chunk by chunk."""
        if not len(positions):
            return
        rows = _opaque(out)
        order = np.argsort(positions)  # by chunk, and forwards within it
        chunk, local = np.divmod(positions[order], self._array.chunk_rows)
        starts = np.flatnonzero(np.diff(chunk, prepend=-1)).tolist()
        for start, stop in pairwise([*starts, len(order)]):
            found = self._chunk(int(chunk[start])).take(local[start:stop], mode="clip")
            rows[order[start:stop]] = found

    def _chunk(self, chunk: int) -> NDArray[np.void]:
        if chunk not in self._chunks:
            mapped = self._array.map(chunk, self._crcs[chunk])
            if len(self._chunks) >= MAPPED_CHUNKS:
                self._chunks.pop(next(iter(self._chunks)))
            self._chunks[chunk] = _opaque(mapped)
        return self._chunks[chunk]
