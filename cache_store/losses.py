"""What committed blocks have lost: chunks that are missing, short or altered, found block by block.

The blocks are read by a few threads, each with one buffer: memory is that of a chunk each, whatever the store.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.errors import CacheReadError, CorruptCacheError
from vlpipe.cache_store.markers import Marker

THREADS = 2  # one reads while the other sums
AHEAD = 32  # blocks in work or waiting


@dataclass(frozen=True)
class Loss:
    """One chunk of a committed block whose bytes are not those that were committed; `why` says what they are."""

    block: int
    array: StoredArray
    chunk: int
    why: str

    @property
    def output(self) -> str:
        """The array's name; that of status or content hashes concerns all outputs."""
        return self.array.folder.name

    @property
    def rows(self) -> range:
        """The rows that are lost."""
        return self.array.span(self.chunk)

    def __str__(self) -> str:
        """`pooled chunk 3 (rows 48 to 63) had crc32c 1a2b3c4d, expected 5e6f7a8b`: told when it is mended."""
        verb, _, rest = self.why.partition(" ")
        was = {"is": "was", "has": "had", "cannot": "could not"}.get(verb, verb)
        return f"{self.output} chunk {self.chunk} (rows {self.rows.start} to {self.rows.stop - 1}) {was} {rest}"


def losses(
    arrays: Mapping[str, StoredArray], markers: Iterable[Marker], sizes_only: Iterable[str] = ()
) -> Iterator[Loss]:
    """The lost chunks of these arrays in committed blocks, in the markers' order.

    Of the arrays in `sizes_only` the bytes are not read, only the files' sizes. An array that a marker does not
    name, or names with another seal, has nothing committed there. Raises `CacheReadError`.
    """
    quick = frozenset(sizes_only)
    buffers = threading.local()

    def of_block(marker: Marker) -> list[Loss]:
        rows = range(marker.start, marker.stop)
        found = []
        for name in sorted(marker.files.keys() & arrays.keys()):
            array, files = arrays[name], marker.files[name]
            if files.seal == array.seal:
                for chunk, crc in zip(array.chunks(rows), files.crc32c, strict=True):
                    why = _size(array, chunk) if name in quick else _bytes(array, chunk, crc, buffers)
                    if why:
                        found.append(Loss(marker.block, array, chunk, why))
        return found

    waiting = iter(markers)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="verify") as pool:
        while some := list(islice(waiting, AHEAD)):
            for found in pool.map(of_block, some):
                yield from found


def _size(array: StoredArray, chunk: int) -> str:
    return "" if array.is_whole(chunk) else "is missing or short"


def _bytes(array: StoredArray, chunk: int, crc: int, buffers: threading.local) -> str:
    rows = len(array.span(chunk))
    data = _buffer(rows * array.row_bytes, buffers).view(array.dtype)
    try:
        array.read(chunk, crc, data.reshape(rows, *array.shape))
    except CorruptCacheError as error:
        return error.why
    except CacheReadError as error:  # a bad spot of the disk is damage, which a new file mends; nothing else is
        if getattr(error.__cause__, "errno", None) == errno.EIO:
            return "cannot be read: the disk fails there"
        raise
    return ""


def _buffer(size: int, buffers: threading.local) -> NDArray[np.uint8]:
    """So many bytes of the thread's own: new memory for each chunk would cost more than reading it."""
    held: dict[str, NDArray[np.uint8]] = buffers.__dict__
    if "bytes" not in held or held["bytes"].size < size:
        held["bytes"] = np.empty(size, np.uint8)
    return held["bytes"][:size]
