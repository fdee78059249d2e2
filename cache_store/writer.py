"""Writes a store block by block; what a kill leaves is always the committed blocks, whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import Rows, StoredArray
from vlpipe.cache_store.donors import Donor
from vlpipe.cache_store.durable import in_parallel, remove_durable
from vlpipe.cache_store.errors import LockedError, StaleCacheError, writing
from vlpipe.cache_store.fingerprint import Fingerprint
from vlpipe.cache_store.group import BOOKS, Group
from vlpipe.cache_store.ids import Ids, as_ids
from vlpipe.cache_store.layout import (
    CONTENT_HASH,
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
from vlpipe.cache_store.places import refuse_remote
from vlpipe.cache_store.preview import Growth, growth, preview
from vlpipe.cache_store.standing import Books, Standing, status_counts
from vlpipe.cache_store.values import BlockRows, checked


class StoreWriter(Standing):
    """Writes the rows of some outputs of one store, one claimed block at a time. `ids` is an Arrow array."""

    def __init__(
        self, path: Path, group: Group, ids: Ids, arrays: Mapping[str, StoredArray], mended: Sequence[str] = ()
    ) -> None:
        """Use `open`. `mended` has a line for each damaged file of metadata that was written anew then."""
        super().__init__(path, group, ids, arrays)
        self.mended = mended
        self.block_rows = group.block_rows
        self._outputs = {name: array for name, array in arrays.items() if name not in BOOKS}
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
        dry: bool = False,
    ) -> StoreWriter:
        """Make a store, or go on with one that was made from the same things; adds arrays for new outputs.

        `block_rows`, a power of two, only counts for a new store; `default_block_rows` says what it is else, and
        what `widest` is. With `dry` nothing is made, mended or locked, only asked: `write` cannot be used. Raises
        `StaleCacheError` that names every difference, `RowsError` for no or repeated ids, `CorruptCacheError` for
        damaged metadata, `UsageError` for unusable outputs, `CacheWriteError`.
        """
        refuse_remote(path)
        table = as_ids(ids)
        size = checked_block_rows(block_rows, len(table), outputs, widest, side)
        asked = Group.of(manifest, side, encoder, constants, table, size)
        opening = preview if dry else open_for_writing
        group, arrays, mended = opening(path, asked, table, outputs, fingerprints)
        return cls(path, group, table, arrays, mended)

    def of(self, outputs: Mapping[str, ArraySpec], fingerprints: Mapping[str, Fingerprint]) -> StoreWriter:
        """The writer of other outputs of the same store; raises as `open` does for those."""
        arrays = open_outputs(self.path, self._group, outputs, fingerprints)
        return StoreWriter(self.path, self._group, self.ids, arrays)

    def growth(self, blocks: Iterable[int]) -> Growth:
        """How much the store grows when these blocks are written."""
        return growth(self.path, self._group, self.ids, self._arrays, blocks)

    def donor(self) -> Donor:
        """The committed rows of this writer's outputs, to be copied."""
        return Donor(self.path, self._group, self._arrays)

    def missing(self, among: Iterable[int] | None = None) -> list[int]:
        """The blocks that are not committed for all outputs of this writer, or have lost a file; read anew.

        Of all blocks, or `among` some.
        """
        blocks = set(self._group.blocks if among is None else among)
        found = {block for block in blocks if not self._committed(block)}
        self._seen_missing = self._seen_missing - blocks | found
        return sorted(found)

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
        self.commit(block, self.check(block, BlockRows(rows, status, content_hash)))

    def check(self, block: int, given: BlockRows) -> BlockRows:
        """The first half of `write`: what `commit` takes, in the stored dtypes; raises as `write` for rows."""
        self._require_claim(block)
        span = self.span(block)
        return checked(self._outputs, self.ids[span.start : span.stop], given)

    def commit(self, block: int, given: BlockRows) -> None:
        """The other half: writes what `check` gave; several threads may, each for its own block."""
        self._require_claim(block)
        with writing(self.path):
            self._commit(block, given)
        self._seen_missing.discard(block)

    def _require_claim(self, block: int) -> None:
        if block not in self._claimed:
            raise LockedError(
                f"block {block} of '{self.path}' is written without being claimed; use claim() first"
            )

    def _commit(self, block: int, given: BlockRows) -> None:
        marker, old = self._state(block)
        committed = self._files(marker)
        books = {STATUS: given.status, CONTENT_HASH: given.content_hash}
        if committed.keys() - given.rows.keys() - books.keys():  # other outputs, which stay
            books = self._agreed(block, old, books)
        else:
            old = {}
        new = {**given.rows, **books}
        fresh = {
            name: rows for name, rows in new.items() if name not in old or not np.array_equal(old[name], rows)
        }
        span = self.span(block)
        altered = (name for name in committed.keys() & fresh if self._alters(name, span, fresh[name], committed))
        if not marker or any(altered):
            remove_durable(marker_path(self.path, block))  # before a file is replaced by other bytes than it names
        written = in_parallel(lambda name: self._write_rows(name, block, fresh[name]), list(fresh))
        files = {**committed, **dict(zip(fresh, written, strict=True))}
        Marker(block, span.start, span.stop, self._group.ids, status_counts(books[STATUS]), files).write(self.path)

    def _alters(self, name: str, span: range, rows: Rows, committed: Mapping[str, Files]) -> bool:
        """Whether rows are other than what was committed: a damaged file that is healed to the bit is not."""
        return self._arrays[name].sums(span, rows) != committed[name].crc32c

    def _write_rows(self, name: str, block: int, rows: Rows) -> Files:
        array = self._arrays[name]
        return Files(array.seal, array.write(self.span(block), rows))

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
