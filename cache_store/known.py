"""Content that a cache holds already: a row is a function of the content and the fingerprint, so it can be copied.

The index keeps eight bytes of a content hash and eight that say where its row stands, sorted: 16 bytes a row.
It only says where to look: the hash in full, the status and the row are read, verified, when a row is copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import Rows
from vlpipe.cache_store.donors import Donor, KnownRow, donors_beside
from vlpipe.cache_store.values import BlockRows

EVERYWHERE = 1 << 62
TRIES = 8  # places of one content that are looked at; more only matter when all of these are damaged
RECENT = 1 << 16  # rows that are kept apart, so that adding a block need not move the whole index

_ROW_BITS = 40  # a place is the store's number, then the row
Places = NDArray[np.int64]


class KnownContent:
    """Where content stands that was encoded before: in the store itself, and in stores of other manifests."""

    def __init__(self, own: Donor) -> None:
        """Index the rows of a store, and of all beside it, of its name, that have its outputs to the bit.

        Those that cannot be read are left out.
        """
        self.donors = [own, *donors_beside(own)]
        self._settled = _Index.empty()
        self._recent = _Index.empty()
        for number, donor in enumerate(self.donors):
            parts = [self._entries(number, block) for block in donor.group.blocks]
            self._settled = self._settled.with_new(_Index.joined(parts))

    def find(self, content: bytes, before: int = EVERYWHERE) -> KnownRow | None:
        """A copy of what this content's hash was encoded to; rows of the store itself only `before` some row."""
        key = np.frombuffer(content[:8], np.uint64)[0]
        for place in (*self._settled.places_of(key), *self._recent.places_of(key)):
            number, row = divmod(place, 1 << _ROW_BITS)
            if number or row < before:
                found = self.donors[number].read(row, content)
                if found:
                    return found
        return None

    def add(self, block: int, rows: BlockRows | None = None) -> None:
        """Take in a block of the store itself that was just committed; or is about to be, with these rows.

        These are kept in memory until `forget`.
        """
        self.forget(block)
        if rows:
            self.donors[0].hold(block, rows)
        new = self._entries(0, block).without(self._settled).without(self._recent)
        self._recent = self._recent.with_new(new)
        if len(self._recent.keys) > RECENT:
            self._settled, self._recent = self._settled.with_new(self._recent), _Index.empty()

    def forget(self, block: int) -> None:
        """A block of the store itself is on the disk now: read it from there."""
        self.donors[0].forget(block)

    def _entries(self, number: int, block: int) -> _Index:
        rows, content = self.donors[number].usable(block)
        return _Index.of(content, rows + (number << _ROW_BITS))


@dataclass(frozen=True)
class _Index:
    """Sorted `keys` (rows,), each the first 8 bytes of a content hash, and the `places` that they stand at."""

    keys: NDArray[np.uint64]
    places: Places

    @classmethod
    def empty(cls) -> _Index:
        """Of nothing."""
        return cls(np.empty(0, np.uint64), np.empty(0, np.int64))

    @classmethod
    def of(cls, content: Rows, places: Places) -> _Index:
        """Of content hashes (rows, 16); of equal ones the first stays."""
        keys = np.ascontiguousarray(content[:, :8]).view(np.uint64).reshape(-1)
        return cls._sorted(keys, places)

    @classmethod
    def joined(cls, parts: list[_Index]) -> _Index:
        """All parts' entries; of equal keys the first stays."""
        keys, places = ([getattr(part, name) for part in parts] for name in ("keys", "places"))
        return cls._sorted(np.concatenate(keys), np.concatenate(places))

    @classmethod
    def _sorted(cls, keys: NDArray[np.uint64], places: Places) -> _Index:
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        first = np.ones(len(keys), bool)
        np.not_equal(keys[1:], keys[:-1], out=first[1:])
        return cls(keys[first], places[order[first]])

    def without(self, other: _Index) -> _Index:
        """The entries whose key the other lacks."""
        if not len(other.keys):
            return self
        at = np.minimum(np.searchsorted(other.keys, self.keys), len(other.keys) - 1)
        new = other.keys[at] != self.keys
        return _Index(self.keys[new], self.places[new])

    def with_new(self, more: _Index) -> _Index:
        """Both, the other's behind ours."""
        at = np.searchsorted(self.keys, more.keys, side="right")
        return _Index(np.insert(self.keys, at, more.keys), np.insert(self.places, at, more.places))

    def places_of(self, key: np.uint64) -> list[int]:
        """Where a key stands, at most `TRIES` of them."""
        first = last = int(self.keys.searchsorted(key))  # the method: half the time of NumPy's function
        while last < len(self.keys) and last < first + TRIES and self.keys[last] == key:
            last += 1
        return list(map(int, self.places[first:last])) if last > first else []
