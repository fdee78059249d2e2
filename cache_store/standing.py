"""What of a store's outputs stands: which blocks are committed, what they hold, and what of it is lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.errors import CorruptCacheError, NotCachedError
from vlpipe.cache_store.group import BOOKS, Group
from vlpipe.cache_store.ids import Ids
from vlpipe.cache_store.layout import CONTENT_HASH, HASH_BYTES, STATUS, USABLE, Status
from vlpipe.cache_store.losses import Loss, losses
from vlpipe.cache_store.markers import Files, Marker
from vlpipe.cache_store.values import BlockRows

COMMITTED = (Status.OK, Status.FAILED, Status.CUT)
Books = dict[str, NDArray[np.uint8]]


class Standing:
    """Some outputs of a store as they stand on disk now: everything is read anew at each call.

    `ids` is an Arrow array; `damaged_markers` are the blocks, of those looked at, whose marker is damaged.
    """

    def __init__(self, path: Path, group: Group, ids: Ids, arrays: Mapping[str, StoredArray]) -> None:
        """Of these arrays, by name, with those of status and of content hashes."""
        self.path = path
        self.ids = ids
        self.damaged_markers: set[int] = set()
        self._group = group
        self._arrays = dict(arrays)

    def span(self, block: int) -> range:
        """The rows of a block."""
        return self._group.span(block)

    def outputs_of(self, block: int) -> set[str]:
        """All outputs that a block is committed for, of this writer or not; none where its marker is damaged."""
        return self._files(self._marker(block)).keys() - {*BOOKS}

    def lost(self, among: Iterable[int] | None = None, *, thorough: bool = True) -> dict[int, list[Loss]]:
        """By block, what committed blocks have lost of this writer's outputs, of status and of content hashes.

        Of all blocks, or `among` some. Every chunk is read, or, where not `thorough`, only the outputs' sizes are
        looked at. Raises `CacheReadError`.
        """
        blocks = sorted(set(self._group.blocks if among is None else among))
        markers = (marker for block in blocks if (marker := self._marker(block)))
        found: dict[int, list[Loss]] = {}
        for loss in losses(self._arrays, markers, () if thorough else self._arrays.keys() - {*BOOKS}):
            found.setdefault(loss.block, []).append(loss)
        return found

    def counts(self) -> dict[Status, int]:
        """How many rows of the blocks that are committed for all outputs of this writer have which status."""
        done = self._done()
        counts = {kind: sum(marker.status[kind.name.lower()] for marker in done) for kind in COMMITTED}
        return {Status.ABSENT: self._group.rows - sum(counts.values()), **counts}

    def failed(self) -> NDArray[np.int64]:
        """The positions of rows that failed for any output of the store, ascending."""
        places = [
            np.flatnonzero(books[STATUS] == Status.FAILED) + marker.start
            for marker, books in self._of_any_output()
            if marker.status["failed"]
        ]
        return np.concatenate([np.empty(0, np.int64), *places])

    def content(self) -> NDArray[np.uint8]:
        """What was encoded, (rows, 16): content hashes of rows usable for any output, zeros for all others."""
        found = np.zeros((self._group.rows, HASH_BYTES), np.uint8)
        for marker, books in self._of_any_output():
            usable = np.isin(books[STATUS], USABLE)[:, None]
            found[marker.start : marker.stop] = np.where(usable, books[CONTENT_HASH], 0)
        return found

    def read_block(self, block: int, again: NDArray[np.int64] | None = None) -> BlockRows:
        """A committed block, verified, to write it again with some rows mended.

        `again`: the places of these rows in the block; a chunk of these only is not read, and its rows are zeros,
        for it may be damaged. A row that failed becomes usable when the block is written with all outputs of the
        store. Raises `NotCachedError`, `CorruptCacheError`.
        """
        marker = self._group.marker(self.path, block)
        if marker is None or not self._arrays.keys() <= self._files(marker).keys():
            raise NotCachedError(f"block {block} of '{self.path}' is not committed; run `vlpipe extract`")
        span = self.span(block)
        skipped = np.isin(np.arange(len(span)), again if again is not None else ())
        rows = {
            name: array.read_rows(span, marker.files[name].crc32c, None if name in BOOKS else skipped)
            for name, array in self._arrays.items()
        }
        return BlockRows(status=rows.pop(STATUS), content_hash=rows.pop(CONTENT_HASH), rows=rows)

    def _committed(self, block: int) -> Marker | None:
        """A block's marker, when it covers all outputs of this writer and every file is there in its full size."""
        marker = self._marker(block)
        return (
            marker if marker and self._arrays.keys() <= self._files(marker).keys() and self._whole(block) else None
        )

    def _done(self) -> list[Marker]:
        markers = (self._committed(block) for block in self._group.blocks)
        return [marker for marker in markers if marker]

    def _of_any_output(self) -> Iterator[tuple[Marker, Books]]:
        """Blocks with verified status and content hash, whatever outputs they have; damaged ones count as none."""
        states = (self._state(block) for block in self._group.blocks)
        return ((marker, books) for marker, books in states if marker)

    def _state(self, block: int) -> tuple[Marker | None, Books]:
        """A block's marker with its verified status and content hash; a damaged block counts as not committed."""
        try:
            marker = self._group.marker(self.path, block)
            if marker and {*BOOKS} <= self._files(marker).keys():
                span = self.span(block)
                return marker, {n: self._arrays[n].read_rows(span, marker.files[n].crc32c) for n in BOOKS}
        except CorruptCacheError:
            pass
        return None, {}

    def _files(self, marker: Marker | None) -> Mapping[str, Files]:
        """What a marker commits, without what belongs to metadata that has been lost since."""
        files = marker.files if marker else {}
        seals = {name: array.seal for name, array in self._arrays.items()}
        return {name: entry for name, entry in files.items() if seals.get(name, entry.seal) == entry.seal}

    def _marker(self, block: int) -> Marker | None:
        """A block's marker; a damaged one counts as none, and is remembered."""
        try:
            return self._group.marker(self.path, block)
        except CorruptCacheError:
            self.damaged_markers.add(block)
            return None

    def _whole(self, block: int) -> bool:
        span = self.span(block)
        return all(array.is_whole(chunk) for array in self._arrays.values() for chunk in array.chunks(span))


def status_counts(status: NDArray[np.uint8]) -> dict[str, int]:
    """Rows by the name of their status."""
    return {kind.name.lower(): int((status == kind).sum()) for kind in COMMITTED}
