"""What of a store is committed at one moment, also while another process writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.errors import CorruptCacheError
from vlpipe.cache_store.group import Group
from vlpipe.cache_store.layout import CONTENT_HASH, HASH_BYTES, STATUS, USABLE
from vlpipe.cache_store.markers import Marker
from vlpipe.cache_store.places import Place, each

Crcs = Mapping[int, int]


@dataclass(frozen=True)
class Committed:
    """One output at one moment: the status of every row (rows,), and the crc32c of what was committed.

    `chunks` are the output's own, by chunk; `content` those of the content hashes, by block.
    """

    status: NDArray[np.uint8]
    chunks: Crcs
    content: Crcs

    @property
    def usable(self) -> NDArray[np.bool_]:
        """(rows,): committed, and ok or cut."""
        return np.isin(self.status, USABLE)


def committed_blocks(store: Place, group: Group, array: StoredArray) -> Committed:
    """What is committed of one output now.

    Markers decide; rows of other blocks are absent, whatever the status array says. Raises `CorruptCacheError`.
    """
    books = StoredArray.open(store / STATUS)
    status = np.zeros(group.rows, np.uint8)
    crcs: dict[int, int] = {}
    content: dict[int, int] = {}

    def marker_of(block: int) -> Marker | None:
        span = group.span(block)
        return _marker_with_status(store, group, block, books, status[span.start : span.stop])

    for block, marker in zip(group.blocks, each(store, marker_of, group.blocks), strict=True):
        span = group.span(block)
        files = marker.files.get(array.folder.name) if marker else None
        if marker and files:
            if files.seal != array.seal or len(files.crc32c) != len(array.chunks(span)):
                raise array.damaged(array.chunks(span)[0], "is not of the array that its block's marker names")
            crcs.update(zip(array.chunks(span), files.crc32c, strict=True))
            content[block] = marker.files[CONTENT_HASH].crc32c[0]
        else:
            status[span.start : span.stop] = 0
    return Committed(status, crcs, content)


def content_hashes(store: Place, group: Group, committed: Committed) -> NDArray[np.uint8]:
    """What was encoded, (rows, 16): content hashes of usable rows, zeros for all others.

    Raises `CorruptCacheError` for a damaged block, or one that was written again since.
    """
    books = StoredArray.open(store / CONTENT_HASH)
    found = np.zeros((group.rows, HASH_BYTES), np.uint8)

    def fill(block: int) -> None:
        span = group.span(block)
        books.read(block, committed.content[block], found[span.start : span.stop])

    list(each(store, fill, committed.content))
    found[~committed.usable] = 0
    return found


def _marker_with_status(
    store: Place, group: Group, block: int, books: StoredArray, out: NDArray[np.uint8]
) -> Marker | None:
    """A block's marker, with the status that belongs to it in `out`.

    A writer may replace the block between the two reads: the marker then changed, and both are read again.
    """
    marker = group.marker(store, block)
    while marker:
        try:
            books.read(block, marker.files[STATUS].crc32c[0], out)
            return marker
        except CorruptCacheError:
            again = group.marker(store, block)
            if again == marker:
                raise
            marker = again
    return None
