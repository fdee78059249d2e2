"""The bytes of one file of an array: a chunk, or a shard of several chunks and their index.

A chunk is its rows' little-endian bytes, filled up with zeros to whole chunks, and their crc32c in 4 bytes: what
Zarr v3 calls the codecs `bytes` and `crc32c`. A shard, its codec `sharding_indexed`, holds chunks one after the
other, then the index: offset and size of each in 8 bytes, all ones for those beyond the array's end, and the
index's own crc32c. As chunks have one size, the index follows from their number: reading needs it not, but checks
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import crc32c
import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.durable import PIECE_BYTES

CRC_BYTES = 4


class Extent(NamedTuple):
    """Where a chunk begins in its file, the bytes that follow it, and whether the file ends there.

    Where it does, one byte more is read, to see what is too long.
    """

    start: int
    after: bytes
    last: bool


def extended(crc: int, data: memoryview | bytes) -> int:
    """The crc32c of bytes that follow those whose crc32c is given (0: none); lets other threads run meanwhile."""
    found: int = crc32c.crc32c(data, crc, gil_release_mode=0)
    return found


class Sum:
    """The crc32c of all pieces so far, each summed as soon as it is read: the processor's cache still has it."""

    def __init__(self) -> None:
        self.crc = 0

    def add(self, piece: memoryview) -> None:
        """One piece more."""
        self.crc = extended(self.crc, piece)


def in_pieces(data: NDArray[np.uint8]) -> Iterator[memoryview]:
    """Bytes as pieces that a processor's cache holds."""
    return (data[start : start + PIECE_BYTES].data for start in range(0, data.nbytes, PIECE_BYTES))


def crc_bytes(crc: int) -> bytes:
    """A crc32c as it stands in a file."""
    return crc.to_bytes(CRC_BYTES, "little")


def encoded(data: NDArray[np.uint8], size: int, crcs: list[int]) -> Iterator[memoryview | bytes]:
    """A chunk's `size` bytes, given those of its rows, in pieces; when all are taken, its crc32c is in `crcs`.

    Each piece is summed just before it is written, while it is in the processor's cache.
    """
    crc = 0
    for values in (data, np.zeros(size - CRC_BYTES - data.nbytes, np.uint8)):
        for piece in in_pieces(values):
            crc = extended(crc, piece)
            yield piece
    crcs.append(crc)
    yield crc_bytes(crc)


def shard_index(chunks: int, places: int, chunk_bytes: int) -> bytes:
    """The index of a shard that holds so many chunks and has places for more; none where there is one place."""
    if places == 1:
        return b""
    index = np.full((places, 2), -1, "<i8")  # all ones: absent
    index[:chunks, 0] = np.arange(chunks) * chunk_bytes
    index[:chunks, 1] = chunk_bytes
    data = index.tobytes()
    return data + crc_bytes(extended(0, data))
