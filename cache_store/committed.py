"""What of a store is committed at one moment, also while another process writes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.errors import CorruptCacheError
from vlpipe.cache_store.group import Group
from vlpipe.cache_store.layout import STATUS
from vlpipe.cache_store.markers import Marker

Crcs = dict[int, int]


def committed_blocks(store: Path, group: Group, array: StoredArray) -> tuple[NDArray[np.uint8], Crcs]:
    """The status of every row of one output, and the crc32c of every committed chunk of it, by chunk.

    Markers decide; rows of other blocks are absent, whatever the status array says. Raises `CorruptCacheError`.
    """
    books = StoredArray.open(store / STATUS)
    status = np.zeros(group.rows, np.uint8)
    crcs: Crcs = {}
    for block in group.blocks:
        span = group.span(block)
        marker = _marker_with_status(store, group, block, books, status[span.start : span.stop])
        files = marker.files.get(array.folder.name) if marker else None
        if files:
            if files.bytes != array.file_bytes or len(files.crc32c) != len(array.chunks(span)):
                raise array.damaged(array.chunks(span)[0], "is not of the array that its block's marker names")
            crcs.update(zip(array.chunks(span), files.crc32c, strict=True))
        else:
            status[span.start : span.stop] = 0
    return status, crcs


def _marker_with_status(
    store: Path, group: Group, block: int, books: StoredArray, out: NDArray[np.uint8]
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
