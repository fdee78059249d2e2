"""How rows get from chunk files to the caller: from memory, or gathered from mapped files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Protocol

import numpy as np

from vlpipe.cache_store.ahead import DEPTH, ahead
from vlpipe.cache_store.arrays import Rows, StoredArray
from vlpipe.cache_store.gather import Opaque, Run, opaque, pieces
from vlpipe.cache_store.order import Positions
from vlpipe.cache_store.places import CHUNK_REQUESTS
from vlpipe.cache_store.stretch import Stretch

# Linux grants a process 65,530 mappings: beyond this many, up to 256 GiB, a set drops its oldest.
MAPPED_CHUNKS = 16_384


class Strategy(Protocol):
    """A way to get at the committed rows of one array."""

    name: str

    def take(self, positions: Positions, out: Rows) -> None:
        """Fill `out` (rows, *shape), contiguous, with the rows at valid positions."""

    def chunks(self, numbers: Iterable[int]) -> Iterator[Rows]:
        """Whole chunks, (rows of the chunk, *shape), each until the next is asked for."""

    def runs(self, windows: Iterable[Positions], most: int) -> Iterator[Run]:
        """The rows of some windows, of `most` at most each, in that order."""


class Resident:
    """All committed chunks in one array, read once, each verified."""

    name = "resident"

    def __init__(self, array: StoredArray, crcs: Mapping[int, int]) -> None:
        rows = np.zeros((array.rows, *array.shape), array.dtype)  # rows that are not committed cost no memory

        def read(chunk: int) -> None:
            span = array.span(chunk)
            array.read(chunk, crcs[chunk], rows[span.start : span.stop])

        for _ in ahead(read, crcs, CHUNK_REQUESTS):
            pass
        self._array, self._all = array, rows
        self._rows = opaque(rows)

    def take(self, positions: Positions, out: Rows) -> None:
        """Fill `out` with the rows at valid positions."""
        if len(positions):
            self._rows.take(positions, out=opaque(out), mode="clip")  # another mode would buffer `out`

    def chunks(self, numbers: Iterable[int]) -> Iterator[Rows]:
        """Views of the one array."""
        for chunk in numbers:
            span = self._array.span(chunk)
            yield self._all[span.start : span.stop]

    def runs(self, windows: Iterable[Positions], most: int) -> Iterator[Run]:
        """Windows as they are."""
        return (Run(rows, self, rows) for rows in windows)


def mapped(array: StoredArray, crcs: Mapping[int, int]) -> Strategy:
    """The way to read mapped files: side by side where chunks are files of whole pages, else each by itself."""
    side_by_side = sys.platform == "linux" and array.stretches and len(crcs) <= MAPPED_CHUNKS
    return MappedTogether(array, crcs) if side_by_side else Mapped(array, crcs)


class MappedTogether:
    """All chunk files in one stretch of addresses, each mapped and verified when first used, and only then."""

    name = "mapped"

    def __init__(self, array: StoredArray, crcs: Mapping[int, int]) -> None:
        self._array, self._crcs = array, crcs
        chunks = len(array.chunks(range(array.rows)))
        self._turns = [Lock() for _ in range(DEPTH)]
        self._stretch = Stretch(chunks * array.chunk_rows * array.row_bytes)
        self._all = np.asarray(self._stretch).view(array.dtype).reshape(-1, *array.shape)
        self._rows = opaque(self._all)
        self._verified = np.zeros(chunks, np.bool_)

    def take(self, positions: Positions, out: Rows) -> None:
        """Fill `out` with the rows at valid positions."""
        if len(positions):
            if not self._verified.all():
                chunks = positions // self._array.chunk_rows
                for _ in self._verifying(np.unique(chunks).tolist()):
                    pass
            self._rows.take(positions, out=opaque(out), mode="clip")

    def chunks(self, numbers: Iterable[int]) -> Iterator[Rows]:
        """The mapped files themselves."""
        spans = (self._array.span(chunk) for chunk in self._verifying(list(numbers)))
        return (self._all[span.start : span.stop] for span in spans)

    def runs(self, windows: Iterable[Positions], most: int) -> Iterator[Run]:
        """Windows as they are."""
        return (Run(rows, self, rows) for rows in windows)

    def _verifying(self, chunks: list[int]) -> Iterator[int]:
        """Chunks, each once it is mapped and verified."""
        return iter(chunks) if self._verified[chunks].all() else ahead(self._verify, chunks)

    def _verify(self, chunk: int) -> int:
        with self._turns[chunk % DEPTH]:  # another thread must not map a newer file over one that was verified
            if not self._verified[chunk]:
                self._array.map_into(self._stretch, chunk, self._crcs[chunk])
                self._verified[chunk] = True
        return chunk


class Mapped:
    """Chunks, each mapped when first used, verified whenever mapped; the system's page cache is the only copy."""

    name = "mapped"

    def __init__(self, array: StoredArray, crcs: Mapping[int, int]) -> None:
        self._array = array
        self._crcs = crcs
        self._chunks: dict[int, tuple[Rows, Opaque]] = {}

    def take(self, positions: Positions, out: Rows) -> None:
        """Fill `out` with the rows at valid positions, chunk by chunk."""
        if len(positions):
            rows = opaque(out)
            for piece in pieces(positions, self._array.chunk_rows):
                piece.copy(self._chunk(piece.chunk)[1], rows)

    def chunks(self, numbers: Iterable[int]) -> Iterator[Rows]:
        """The mapped files themselves."""
        return (self._chunk(chunk)[0] for chunk in numbers)

    def runs(self, windows: Iterable[Positions], most: int) -> Iterator[Run]:
        """Windows as they are."""
        return (Run(rows, self, rows) for rows in windows)

    def _chunk(self, chunk: int) -> tuple[Rows, Opaque]:
        if chunk not in self._chunks:
            mapped = self._array.map(chunk, self._crcs[chunk])
            if len(self._chunks) >= MAPPED_CHUNKS:
                self._chunks.pop(next(iter(self._chunks)))
            self._chunks[chunk] = mapped, opaque(mapped)
        return self._chunks[chunk]
