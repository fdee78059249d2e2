"""Rows picked from chunks by their positions: each copied whole, whatever its shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import Rows
from vlpipe.cache_store.order import Positions

Opaque = NDArray[np.void]

# From this size on a row is copied by itself: a Python step costs less than a second copy of it.
WIDE_ROW_BYTES = 8 << 10


def opaque(rows: Rows) -> Opaque:
    """Contiguous rows as one axis of opaque items, each of which NumPy copies in one go."""
    return np.ndarray(len(rows), _item(prod(rows.shape[1:]) * rows.itemsize), rows)


@lru_cache(maxsize=64)
def _item(size: int) -> np.dtype[np.void]:
    return np.dtype((np.void, size))


def _as_bytes(rows: Opaque) -> NDArray[np.uint8]:
    return rows.view(np.uint8).reshape(len(rows), -1)


@dataclass(frozen=True)
class Piece:
    """What of a request lies in one chunk: rows `local` of the chunk go to the places `where` of the output."""

    chunk: int
    local: Positions
    where: slice | Positions

    def copy(self, chunk: Opaque, out: Opaque) -> None:
        """Copy from the chunk's rows to the output's."""
        if isinstance(self.where, slice):
            chunk.take(self.local, out=out[self.where], mode="clip")  # another mode would buffer `out`
        elif out.itemsize < WIDE_ROW_BYTES:
            out[self.where] = chunk.take(self.local, mode="clip")
        else:
            source, target = _as_bytes(chunk), _as_bytes(out)
            for row, place in zip(self.local.tolist(), self.where.tolist(), strict=True):
                target[place] = source[row]

    def is_all_of(self, rows: int) -> bool:
        """Whether these are all rows of a chunk of so many, in order, for one stretch of the output."""
        return (
            isinstance(self.where, slice)
            and len(self.local) == rows
            and bool((self.local == np.arange(rows)).all())
        )


def pieces(positions: Positions, chunk_rows: int) -> Iterator[Piece]:
    """A request chunk by chunk, and forwards within each."""
    if not len(positions):
        return
    order = None if bool((positions[1:] >= positions[:-1]).all()) else np.argsort(positions)
    ordered = positions if order is None else positions[order]
    chunk = ordered // chunk_rows
    local = ordered - chunk * chunk_rows
    starts = np.flatnonzero(np.diff(chunk, prepend=-1))
    numbers = chunk[starts].tolist()
    for number, (start, stop) in zip(numbers, pairwise([*starts.tolist(), len(ordered)]), strict=True):
        yield Piece(number, local[start:stop], slice(start, stop) if order is None else order[start:stop])


@dataclass(frozen=True)
class Run:
    """Rows that follow each other in an epoch, and where they are copied from."""

    positions: Positions
    source: Any  # anything with `take`
    places: Positions  # of these rows in the source

    def fill(self, start: int, stop: int, out: Rows) -> None:
        """Copy some of the run's rows to `out`."""
        self.source.take(self.places[start:stop], out)
