"""Writes a store block by block; what a kill leaves is always the committed blocks, whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import Rows, StoredArray
from vlpipe.cache_store.durable import remove_durable, sync_folders
from vlpipe.cache_store.errors import CorruptCacheError, LockedError, NotCachedError, StaleCacheError, writing
from vlpipe.cache_store.fingerprint import Fingerprint
from vlpipe.cache_store.group import Group
from vlpipe.cache_store.ids import Ids, as_ids
from vlpipe.cache_store.layout import (
    CONTENT_HASH,
    HASH_BYTES,
    STATUS,
    USABLE,
    ArraySpec,
    Side,
    Status,
    lock_path,
    marker_path,
)
from vlpipe.cache_store.locks import exclusive
from vlpipe.cache_store.markers import Files, Marker
from vlpipe.cache_store.opening import checked_block_rows, open_for_writing, open_outputs
from vlpipe.cache_store.values import BlockRows, checked

BOOKS = (STATUS, CONTENT_HASH)
COMMITTED = (Status.OK, Status.FAILED, Status.CUT)
Books = dict[str, NDArray[np.uint8]]


class StoreWriter:
    """Writes the rows of some outputs of one store, one claimed block at a time. `ids` is an Arrow array."""

    def __init__(self, path: Path, group: Group, ids: Ids, arrays: Mapping[str, StoredArray]) -> None:
        """Use `open`."""
        self.path = path
        self.block_rows = group.block_rows
        self._group = group
        self.ids = ids
        self._outputs = {name: array for name, array in arrays.items() if name not in BOOKS}
        self._arrays = dict(arrays)
        self._claimed: set[int] = set()
        self._seen_missing: set[int] = set()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        manifest: str,
        side: Side,
        encoder: str,
        ids: Sequence[str],
        outputs: Mapping[str, ArraySpec],
        fingerprints: Mapping[str, Fingerprint],
        constants: Mapping[str, float],
        block_rows: int | None = None,
        widest: int = 0,
    ) -> StoreWriter:
        """Make a store, or go on with one that was made from the same things; adds arrays for new outputs.

        `block_rows`, a power of two, only counts for a new store; `default_block_rows` says what it is else, and
        what `widest` is. Raises `StaleCacheError` that names every
        difference, `RowsError` for no or repeated ids, `CorruptCacheError` for damaged metadata, `UsageError` for
        unusable outputs, `CacheWriteError`.
        """
        table = as_ids(ids)
        size = checked_block_rows(block_rows, len(table), outputs, widest)
        asked = Group.of(manifest, side, encoder, constants, table, size)
        group, arrays = open_for_writing(path, asked, table, outputs, fingerprints)
        return cls(path, group, table, arrays)

    def of(self, outputs: Mapping[str, ArraySpec], fingerprints: Mapping[str, Fingerprint]) -> StoreWriter:
        """The writer of other outputs of the same store; raises as `open` does for those."""
        arrays = open_outputs(self.path, self._group, outputs, fingerprints)
        return StoreWriter(self.path, self._group, self.ids, arrays)

    def span(self, block: int) -> range:
        """The rows of a block."""
        return self._group.span(block)

    def missing(self, among: Iterable[int] | None = None) -> list[int]:
        """The blocks that are not committed for all outputs of this writer, or have lost a file; read anew.

        Of all blocks, or `among` some.
        """
        blocks = set(self._group.blocks if among is None else among)
        found = {block for block in blocks if not self._committed(block)}
        self._seen_missing = self._seen_missing - blocks | found
        return sorted(found)

    def outputs_of(self, block: int) -> set[str]:
        """All outputs that a block is committed for, of this writer or not; none where its marker is damaged."""
        marker = self._marker(block)
        return set(marker.files) - {*BOOKS} if marker else set()

    @contextmanager
    def claim(self, block: int) -> Iterator[bool]:
        """Hold a block's lock, which dies with the process.

        Yields False when another process holds it, or has committed a block that `missing` listed since.
        """
        with exclusive(lock_path(self.path, block)) as held:
            mine = held and not (block in self._seen_missing and self._committed(block))
            if mine:
                self._claimed.add(block)
            try:
                yield mine
            finally:
                if mine:
                    self._claimed.discard(block)

    def write(
        self, block: int, rows: Mapping[str, Rows], status: NDArray[np.uint8], content_hash: NDArray[np.uint8]
    ) -> None:
        """Write and commit one block: `rows[output]` (rows, *shape), `status` (rows,), `content_hash` (rows, 16).

        Outputs of the store that are not written here keep their rows, provided that the same content was encoded;
        a row is usable only if all outputs have it. Everything is checked before the disk is touched. Raises
        `LockedError` without a claim, `RowsError`, `ValueRangeError`, `StaleCacheError` for other content,
        `CacheWriteError`.
        """
        if block not in self._claimed:
            raise LockedError(
                f"block {block} of '{self.path}' is written without being claimed; use claim() first"
            )
        span = self.span(block)
        given = checked(self._outputs, self.ids[span.start : span.stop], BlockRows(rows, status, content_hash))
        with writing(self.path):
            self._commit(block, given)
        self._seen_missing.discard(block)

    def _commit(self, block: int, given: BlockRows) -> None:
        marker, old = self._state(block)
        committed = marker.files if marker else {}
        books = {STATUS: given.status, CONTENT_HASH: given.content_hash}
        if committed.keys() - given.rows.keys() - books.keys():  # other outputs, which stay
            books = self._agreed(block, old, books)
        else:
            old = {}
        new = {**given.rows, **books}
        fresh = {
            name: rows for name, rows in new.items() if name not in old or not np.array_equal(old[name], rows)
        }
        if not marker or committed.keys() & fresh:
            remove_durable(marker_path(self.path, block))  # before any file that it names is replaced
        files = {**committed, **{name: self._write_rows(name, block, rows) for name, rows in fresh.items()}}
        span = self.span(block)
        Marker(block, span.start, span.stop, self._group.ids, status_counts(books[STATUS]), files).write(self.path)

    def _write_rows(self, name: str, block: int, rows: Rows) -> Files:
        array, span = self._arrays[name], self.span(block)
        crcs = array.write(span, rows)
        sync_folders([array.path(chunk) for chunk in array.chunks(span)], array.folder)
        return Files(array.file_bytes, crcs)

    def _agreed(self, block: int, old: Books, new: Books) -> Books:
        """Status and content of a block whose other outputs stay: usable only where both are."""
        both = np.isin(old[STATUS], USABLE) & np.isin(new[STATUS], USABLE)
        changed = both & (old[CONTENT_HASH] != new[CONTENT_HASH]).any(axis=1)
        if changed.any():
            start = self.span(block).start
            names = [self.ids[start + int(row)].as_py() for row in np.flatnonzero(changed)[:3]]
            raise StaleCacheError(
                f"'{self.path}': {changed.sum()} rows of block {block} were cached from other content than what "
                f"lies there now, first {names}; keep both with --as NAME, or use another --cache"
            )
        failed = np.where(old[STATUS] == Status.FAILED, old[STATUS], new[STATUS])
        return {STATUS: failed, CONTENT_HASH: np.where(both[:, None], new[CONTENT_HASH], old[CONTENT_HASH])}

    def _state(self, block: int) -> tuple[Marker | None, Books]:
        """A block's marker with its verified status and content hash; a damaged block counts as not committed."""
        try:
            marker = self._group.marker(self.path, block)
            if marker:
                span = self.span(block)
                return marker, {n: self._arrays[n].read_rows(span, marker.files[n].crc32c) for n in BOOKS}
        except CorruptCacheError:
            pass
        return None, {}

    def _committed(self, block: int) -> Marker | None:
        """A block's marker, when it covers all outputs of this writer and every file is there in its full size."""
        marker = self._marker(block)
        return marker if marker and self._arrays.keys() <= marker.files.keys() and self._whole(block) else None

    def _marker(self, block: int) -> Marker | None:
        """A block's marker; a damaged one counts as none."""
        try:
            return self._group.marker(self.path, block)
        except CorruptCacheError:
            return None

    def _whole(self, block: int, names: Iterable[str] | None = None) -> bool:
        arrays = (self._arrays[name] for name in (self._arrays if names is None else names))
        return all(array.is_whole(chunk) for array in arrays for chunk in array.chunks(self.span(block)))

    def _of_any_output(self) -> Iterator[Marker]:
        """The markers of the blocks whose status and content hash are there, whatever outputs they have."""
        markers = (self._marker(block) for block in self._group.blocks)
        return (marker for marker in markers if marker and self._whole(marker.block, BOOKS))

    def _done(self) -> list[Marker]:
        markers = (self._committed(block) for block in self._group.blocks)
        return [marker for marker in markers if marker]

    def counts(self) -> dict[Status, int]:
        """How many rows of the blocks that are committed for all outputs of this writer have which status."""
        done = self._done()
        counts = {kind: sum(marker.status[kind.name.lower()] for marker in done) for kind in COMMITTED}
        return {Status.ABSENT: self._group.rows - sum(counts.values()), **counts}

    def failed(self) -> NDArray[np.int64]:
        """The positions of rows that failed for any output of the store, ascending; raises `CorruptCacheError`."""
        found = [np.empty(0, np.int64)]
        for marker in self._of_any_output():
            if marker.status["failed"]:
                rows = range(marker.start, marker.stop)
                status = self._arrays[STATUS].read_rows(rows, marker.files[STATUS].crc32c)
                found.append(np.flatnonzero(status == Status.FAILED) + marker.start)
        return np.concatenate(found)

    def content(self) -> NDArray[np.uint8]:
        """What was encoded, (rows, 16): content hashes of rows usable for any output, zeros for all others.

        Raises `CorruptCacheError`.
        """
        found = np.zeros((self._group.rows, HASH_BYTES), np.uint8)
        for marker in self._of_any_output():
            rows = range(marker.start, marker.stop)
            status, content = (self._arrays[n].read_rows(rows, marker.files[n].crc32c) for n in BOOKS)
            found[rows.start : rows.stop] = np.where(np.isin(status, USABLE)[:, None], content, 0)
        return found

    def read_block(self, block: int) -> BlockRows:
        """A committed block, verified, to write it again with some rows mended.

        Raises `NotCachedError`, `CorruptCacheError`. A row that failed becomes usable when the block is written
        with all outputs of the store.
        """
        marker = self._group.marker(self.path, block)
        if marker is None or not self._arrays.keys() <= marker.files.keys():
            raise NotCachedError(f"block {block} of '{self.path}' is not committed; run `vlpipe extract`")
        rows = {n: a.read_rows(self.span(block), marker.files[n].crc32c) for n, a in self._arrays.items()}
        return BlockRows(status=rows.pop(STATUS), content_hash=rows.pop(CONTENT_HASH), rows=rows)


def status_counts(status: NDArray[np.uint8]) -> dict[str, int]:
    """Rows by the name of their status."""
    return {kind.name.lower(): int((status == kind).sum()) for kind in COMMITTED}
