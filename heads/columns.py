"""Manifest columns of a batch, looked up when a head reads them: most never do, and texts are dear to fetch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vlpipe.heads.tables import IntArray

Reader = Callable[[IntArray], list[Any]]


class Columns(Mapping[str, list[Any]]):
    """By name: what a reader makes of positions in a table, one entry a row."""

    def __init__(self, readers: Mapping[str, Reader], positions: Mapping[str, IntArray]) -> None:
        self._readers = readers
        self._positions = positions
        self._read: dict[str, list[Any]] = {}

    def __getitem__(self, name: str) -> list[Any]:
        """A column, read at its first use."""
        if name not in self._read:
            self._read[name] = self._readers[name](self._positions[name])
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def part(self, rows: slice) -> Columns:
        """The columns of some rows."""
        return Columns(self._readers, {name: positions[rows] for name, positions in self._positions.items()})
