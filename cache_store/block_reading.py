"""Rows read chunk by chunk into buffers of a bounded size: for stores that are remote, or must not be mapped.

An epoch's window is read once and its rows staged in memory; the next window is read meanwhile when both fit the
budget. A window that does not fit is read in several passes, each of which reads all its chunks and keeps as many
of its rows as fit: bounded memory comes first, and a window of four budgets costs about five times the reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import cycle

import numpy as np

from vlpipe.cache_store.ahead import ahead
from vlpipe.cache_store.arrays import Rows, StoredArray
from vlpipe.cache_store.gather import Opaque, Piece, Run, opaque, pieces
from vlpipe.cache_store.order import Positions
from vlpipe.foundation.errors import UsageError

READERS = 4  # chunks that are read at the same time
INDEX_BYTES = 64  # the numbers that go with a staged row: positions, their order, chunks, places


class Blocks:
    """Whole chunks, read anew and verified each time, into at most `memory_budget` bytes.

    Raises `UsageError` for a budget that does not hold two chunks.
    """

    name = "blocks"

    def __init__(self, array: StoredArray, crcs: Mapping[int, int], memory_budget: int) -> None:
        if memory_budget < 2 * array.chunk_bytes:
            raise UsageError(
                f"memory_budget of {memory_budget} bytes: expected at least two chunks, {2 * array.chunk_bytes} "
                f"bytes, to read '{array.folder}' by blocks"
            )
        self._array, self._crcs = array, crcs
        self._readers = max(1, min(READERS, memory_budget // 4 // array.chunk_bytes))
        rest = memory_budget - self._readers * array.chunk_bytes
        self._staged_rows = max(1, rest // (array.row_bytes + INDEX_BYTES))

    def take(self, positions: Positions, out: Rows) -> None:
        """Fill `out` with the rows at valid positions; reads every chunk that holds one."""
        if not len(positions):
            return
        rows, buffers = opaque(out), list[Rows]()

        def copy(piece: Piece) -> None:
            if piece.is_all_of(len(self._array.span(piece.chunk))):
                self._read(piece.chunk, out[piece.where])
                return
            buffer = buffers.pop() if buffers else self._staging(self._array.chunk_rows)
            piece.copy(opaque(self._read(piece.chunk, buffer)), rows)
            buffers.append(buffer)

        for _ in ahead(copy, pieces(positions, self._array.chunk_rows), self._readers + 1):
            pass

    def chunks(self, numbers: Iterable[int]) -> Iterator[Rows]:
        """Chunks in a few buffers: some are read while one is used."""
        buffers = [self._staging(self._array.chunk_rows) for _ in range(max(2, self._readers))]
        return ahead(lambda item: self._read(*item), zip(numbers, cycle(buffers), strict=False), len(buffers))

    def runs(self, windows: Iterable[Positions], most: int) -> Iterator[Run]:
        """Windows, or as many of their rows as fit, each staged in memory while the one before is used."""
        size = min(most, self._staged_rows)
        parts = (rows[start : start + size] for rows in windows for start in range(0, len(rows), size))
        if 2 * most > self._staged_rows:
            buffer = self._staging(size)
            return (self._stage(part, buffer) for part in parts)
        buffers = cycle([self._staging(size), self._staging(size)])
        return ahead(lambda item: self._stage(*item), zip(parts, buffers, strict=False), 2)

    def _stage(self, part: Positions, buffer: Rows) -> Run:
        order = np.argsort(part)
        staged = buffer[: len(part)]
        self.take(part[order], staged)
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        return Run(part, _Staged(opaque(staged)), places)

    def _read(self, chunk: int, buffer: Rows) -> Rows:
        rows = buffer[: len(self._array.span(chunk))]
        self._array.read(chunk, self._crcs[chunk], rows)
        return rows

    def _staging(self, rows: int) -> Rows:
        return np.empty((rows, *self._array.shape), self._array.dtype)


class _Staged:
    """Rows of a run, in the order of the store."""

    def __init__(self, rows: Opaque) -> None:
        self._rows = rows

    def take(self, places: Positions, out: Rows) -> None:
        """Fill `out` with the rows at some places."""
        self._rows.take(places, out=opaque(out), mode="clip")
