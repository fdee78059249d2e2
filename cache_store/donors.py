"""A store as a giver of rows: committed, usable and undamaged ones of some outputs, each with its content hash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import Rows, StoredArray
from vlpipe.cache_store.group import BOOKS, Group
from vlpipe.cache_store.layout import CONTENT_HASH, STATUS, USABLE
from vlpipe.cache_store.markers import Marker
from vlpipe.cache_store.values import BlockRows
from vlpipe.foundation.errors import VlpipeError

OPEN = 512  # mapped chunks, and blocks' books, that are kept open of a store


@dataclass(frozen=True)
class KnownRow:
    """One row of another place: `rows[output]` (*shape), read-only, and its status, ok or cut."""

    rows: Mapping[str, Rows]
    status: int


@dataclass(frozen=True)
class Books:
    """One committed block: its marker, status (rows,), and content hashes (rows, 16)."""

    marker: Marker
    status: Rows
    content_hash: Rows


class Donor:
    """The committed usable rows of some outputs of a store, which another process may be writing."""

    def __init__(self, store: Path, group: Group, arrays: Mapping[str, StoredArray]) -> None:
        """`arrays` are those of the outputs, of status and of content hashes."""
        self.store, self.group = store, group
        self.arrays = {name: array for name, array in arrays.items() if name not in BOOKS}
        self._status, self._content = arrays[STATUS], arrays[CONTENT_HASH]
        self._books: dict[int, Books | None] = {}
        self._mapped: dict[tuple[str, int, int], Rows] = {}
        self._held: dict[int, BlockRows] = {}
        self._lock = Lock()  # rows are looked up while pictures are prepared, in threads

    @classmethod
    def open(cls, store: Path, outputs: Iterable[str]) -> Donor:
        """Raises `VlpipeError` kinds for a store that cannot be read or lacks an output."""
        return cls(store, Group.open(store), {name: StoredArray.open(store / name) for name in (*outputs, *BOOKS)})

    def gives(self, other: Donor) -> bool:
        """Whether these outputs are that store's to the bit: equal fingerprints, shapes and dtypes."""
        return self.arrays.keys() == other.arrays.keys() and all(
            (mine.fingerprint, mine.shape, mine.dtype) == (its.fingerprint, its.shape, its.dtype)
            for mine, its in ((array, other.arrays[name]) for name, array in self.arrays.items())
        )

    def usable(self, block: int) -> tuple[NDArray[np.int64], Rows]:
        """The usable rows of a block, and their content hashes (rows, 16); none where it is not committed."""
        books = self._held.get(block) or self._read_books(block)
        if books is None:
            return np.empty(0, np.int64), np.empty((0, self._content.shape[0]), np.uint8)
        rows = np.flatnonzero(np.isin(books.status, USABLE))
        return rows + self.group.span(block).start, books.content_hash[rows]

    def hold(self, block: int, rows: BlockRows) -> None:
        """Give these rows of a block, in the stored dtypes, which are on their way to the disk, until `forget`."""
        with self._lock:
            self._held[block] = rows

    def forget(self, block: int) -> None:
        """Look at a block's marker anew: it was written again."""
        with self._lock:
            self._held.pop(block, None)
            self._books.pop(block, None)

    def read(self, row: int, content: bytes) -> KnownRow | None:
        """A row, if it is usable, of this very content, and undamaged; for any number of threads."""
        block, place = divmod(row, self.group.block_rows)
        with self._lock:
            held = self._held.get(block)
            return self._read_held(held, place, content) if held else self._read(row, block, place, content)

    def _read_held(self, held: BlockRows, place: int, content: bytes) -> KnownRow | None:
        if held.content_hash[place].tobytes() != content or held.status[place] not in USABLE:
            return None
        return KnownRow({name: held.rows[name][place] for name in self.arrays}, int(held.status[place]))

    def _read(self, row: int, block: int, place: int, content: bytes) -> KnownRow | None:
        if block not in self._books:
            _keep(self._books, block, self._read_books(block))
        books = self._books[block]
        if books is None or books.content_hash[place].tobytes() != content or books.status[place] not in USABLE:
            return None
        try:
            rows = {name: self._row(array, row, books.marker) for name, array in self.arrays.items()}
        except VlpipeError:
            return None
        return KnownRow(rows, int(books.status[place]))

    def _row(self, array: StoredArray, row: int, marker: Marker) -> Rows:
        chunk = row // array.chunk_rows
        first = array.chunks(range(marker.start, marker.stop)).start
        crc = marker.files[array.folder.name].crc32c[chunk - first]
        key = array.folder.name, chunk, crc
        values = self._mapped.get(key)
        if values is None:
            values = array.map(chunk, crc)
            _keep(self._mapped, key, values)
        found: Rows = values[row - array.span(chunk).start]
        return found

    def _covers(self, marker: Marker) -> bool:
        return all(name in marker.files and marker.files[name].seal == a.seal for name, a in self.arrays.items())

    def _read_books(self, block: int) -> Books | None:
        """A block's verified books; None where it is damaged, or not committed for all the outputs."""
        try:
            marker = self.group.marker(self.store, block)
            if marker is None or not self._covers(marker):
                return None
            status, content = (
                array.map(block, marker.files[array.folder.name].crc32c[0])
                for array in (self._status, self._content)
            )
        except (VlpipeError, OSError):
            return None
        return Books(marker, status, content)


def donors_beside(own: Donor) -> Iterator[Donor]:
    """The stores of other manifests in the same cache that hold the same outputs of the same encoder.

    Those that cannot be read are left out.
    """
    for path in sorted(own.store.parent.parent.glob(f"*/{own.store.name}")):
        try:
            donor = Donor.open(path, own.arrays)
        except (VlpipeError, OSError):  # damaged, half made, or without some output
            continue
        if path != own.store and donor.gives(own):
            yield donor


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Remember, and forget the oldest beyond `OPEN`."""
    kept[key] = value
    if len(kept) > OPEN:
        kept.pop(next(iter(kept)), None)
