"""Ids of millions of rows in little memory: 16 bytes each, exact but for a chance of one in 10^26."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.bytes_]
WIDTH = 16  # bytes of a hash
STEP = 65_536  # rows of one comparison


class Ids:
    """Ids in row order; None is no id. They cost 16 bytes a row, and 16 more once they are compared."""

    def __init__(self) -> None:
        self._hashes = bytearray()

    def extend(self, ids: Iterable[str | None]) -> None:
        """Take in the ids of the next rows; not after the first comparison."""
        self._hashes += b"".join(bytes(WIDTH) if value is None else _hash(value) for value in ids)

    def repeated(self) -> tuple[int, int] | None:
        """Row positions of an id that stands twice: the first row that repeats any, and the one it repeats."""
        before, after = self._sorted[:-1], self._sorted[1:]
        if not any(np.any(before[at : at + STEP] == after[at : at + STEP]) for at in _steps(before)):
            return None
        _, first, which = np.unique(self._array, return_index=True, return_inverse=True)
        second = np.flatnonzero(first[which] != np.arange(len(which)))[0]
        return int(first[which[second]]), int(second)

    def missing_in(self, known: Ids) -> int | None:
        """Row position of the first id here that `known` does not hold."""
        for at in _steps(self._array):
            part = self._array[at : at + STEP]
            missing = np.flatnonzero((part != b"") & ~_among(part, known._sorted))
            if len(missing):
                return at + int(missing[0])
        return None

    @property
    def _array(self) -> Hashes:
        # Fixed-width byte strings sort and compare as their 16 bytes: only NULs at the end are not seen.
        return np.frombuffer(self._hashes, dtype=f"S{WIDTH}")

    @cached_property
    def _sorted(self) -> Hashes:
        return np.sort(self._array)


def _among(part: Hashes, known: Hashes) -> npt.NDArray[np.bool_]:
    if not len(known):
        return np.zeros(len(part), dtype=bool)
    at = np.minimum(np.searchsorted(known, part), len(known) - 1)
    return np.asarray(known[at] == part, dtype=bool)


def _steps(array: Hashes) -> range:
    return range(0, len(array), STEP)


def _hash(value: str) -> bytes:
    return blake2b(value.encode("utf-8"), digest_size=WIDTH).digest()
