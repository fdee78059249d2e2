"""One array of a store as plain files of chunks, read and written without going through zarr's own indexing.

Written directly because the marker needs each chunk's checksum and because a file has to be fsynced; read directly
because zarr's fancy indexing is a hundred times slower.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vlpipe.cache_store.chunk_files import (
    CRC_BYTES,
    Extent,
    Sum,
    crc_bytes,
    encoded,
    extended,
    in_pieces,
    shard_index,
)
from vlpipe.cache_store.durable import in_parallel, write_durable
from vlpipe.cache_store.errors import CacheReadError, CorruptCacheError
from vlpipe.cache_store.metadata import read_node
from vlpipe.cache_store.places import Place, read_into
from vlpipe.cache_store.stretch import PAGE_BYTES, Stretch
from vlpipe.foundation.files import digest, fsync_folder

Rows = NDArray[Any]


@dataclass(frozen=True)
class StoredArray:
    """Where an array's rows lie: chunk `n` holds the rows from `n * chunk_rows` on, file `m` those of `file_rows`.

    A file is one chunk, or a shard of several. `seal` is the checksum of the array's sealed metadata.
    """

    folder: Place
    rows: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int
    file_rows: int
    fingerprint: Mapping[str, str]
    seal: str

    @classmethod
    def open(cls, folder: Place) -> StoredArray:
        """Read an array's metadata; raises `CorruptCacheError`."""
        content = read_node(folder, "array", {"fingerprint", "array"})
        array = content["array"]
        rows, *shape = array["shape"]
        file_rows = array["chunk_grid"]["configuration"]["chunk_shape"][0]
        chunk_rows = array["codecs"][0].get("configuration", {}).get("chunk_shape", [file_rows])[0]
        dtype = np.dtype(array["data_type"]).newbyteorder("<")
        fingerprint = content["fingerprint"]
        return cls(folder, rows, tuple(shape), dtype, chunk_rows, file_rows, fingerprint, digest(content))

    @property
    def mappable(self) -> bool:
        """Whether chunks can be mapped: not where they are remote."""
        return isinstance(self.folder, Path)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def chunk_bytes(self) -> int:
        """Bytes of every chunk: whole chunks also at the end, and the checksum."""
        return self.chunk_rows * self.row_bytes + CRC_BYTES

    def path(self, chunk: int) -> Place:
        """The file that a chunk lies in; all of an array lie in one folder, so that one sync makes them last."""
        return self.folder / ".".join(("c", str(self._file(chunk)), *("0" for _ in self.shape)))

    def _file(self, chunk: int) -> int:
        return chunk * self.chunk_rows // self.file_rows

    def _chunks_of_file(self, file: int) -> range:
        return self.chunks(range(file * self.file_rows, min(self.rows, (file + 1) * self.file_rows)))

    def _index(self, file: int) -> bytes:
        places = self.file_rows // self.chunk_rows
        return shard_index(len(self._chunks_of_file(file)), places, self.chunk_bytes)

    def _file_bytes(self, file: int) -> int:
        return len(self._chunks_of_file(file)) * self.chunk_bytes + len(self._index(file))

    def _extent(self, chunk: int) -> Extent:
        """Where in its file a chunk lies.

        A shard's index is checked with its last chunk: the others are read without it, and reading all chunks
        reads all bytes.
        """
        if self.file_rows == self.chunk_rows:
            return Extent(0, b"", True)
        file = self._file(chunk)
        chunks = self._chunks_of_file(file)
        last = chunk == chunks[-1]
        return Extent((chunk - chunks.start) * self.chunk_bytes, self._index(file) if last else b"", last)

    def span(self, chunk: int) -> range:
        """The rows of a chunk."""
        return range(chunk * self.chunk_rows, min(self.rows, (chunk + 1) * self.chunk_rows))

    def chunks(self, rows: range) -> range:
        """The chunks of a block's rows; blocks begin where chunks do."""
        return range(rows.start // self.chunk_rows, -(-rows.stop // self.chunk_rows))

    def stored_bytes(self, rows: range) -> dict[Place, int]:
        """The files of a block's rows, and the bytes that each has when it is written."""
        return {self.path(chunk): self._file_bytes(self._file(chunk)) for chunk in self.chunks(rows)}

    def write(self, rows: range, values: Rows) -> list[int]:
        """Write a block's rows in the array's dtype, (rows, *shape), durably; returns the crc32c of each chunk."""
        flat = np.ascontiguousarray(values, self.dtype).reshape(len(rows), -1).view(np.uint8)

        def write_file(file: int) -> list[int]:
            return self._write_file(file, flat, rows.start)

        chunks = self.chunks(rows)
        crcs = in_parallel(write_file, range(self._file(chunks[0]), self._file(chunks[-1]) + 1))
        fsync_folder(Path(str(self.folder)))
        return [crc for found in crcs for crc in found]

    def sums(self, rows: range, values: Rows) -> list[int]:
        """What `write` of the same would return, without writing."""
        flat = np.ascontiguousarray(values, self.dtype).reshape(len(rows), -1).view(np.uint8)
        crcs: list[int] = []
        for chunk in self.chunks(rows):
            span = self.span(chunk)
            data = flat[span.start - rows.start : span.stop - rows.start].reshape(-1)
            deque(encoded(data, self.chunk_bytes, crcs), maxlen=0)
        return crcs

    def _write_file(self, file: int, flat: NDArray[np.uint8], start: int) -> list[int]:
        spans = [self.span(chunk) for chunk in self._chunks_of_file(file)]
        data = [flat[span.start - start : span.stop - start].reshape(-1) for span in spans]
        crcs: list[int] = []
        chunks = (encoded(rows, self.chunk_bytes, crcs) for rows in data)
        path = self.path(self._chunks_of_file(file)[0])
        write_durable(Path(str(path)), chain(*chunks, [self._index(file)]))
        return crcs

    def read(self, chunk: int, crc: int, out: Rows) -> None:
        """Read a chunk's rows into `out`, (rows of the chunk, *shape), contiguous.

        Raises `CorruptCacheError`, `CacheReadError`.
        """
        start, after, last = self._extent(chunk)
        data = out.reshape(-1).view(np.uint8)
        rest = np.empty(self.chunk_bytes - data.nbytes + len(after) + last, np.uint8)
        total = Sum()
        with self._reading(chunk):
            found = read_into(self.path(chunk), start, in_pieces(data), rest.data, total.add)
        self._check(chunk, crc, total.crc, data.nbytes, rest, found)

    def read_rows(self, rows: range, crcs: Sequence[int], without: NDArray[np.bool_] | None = None) -> Rows:
        """A block's rows, (rows, *shape), given the crc32c of its chunks; raises `CorruptCacheError`.

        Chunks all of whose rows are marked in `without` (rows,) are not read: their rows are zeros.
        """
        out = np.zeros((len(rows), *self.shape), self.dtype)
        for chunk, crc in zip(self.chunks(rows), crcs, strict=True):
            span = self.span(chunk)
            part = slice(span.start - rows.start, span.stop - rows.start)
            if without is None or not without[part].all():
                self.read(chunk, crc, out[part])
        return out

    def map(self, chunk: int, crc: int) -> Rows:
        """Map a chunk's rows read-only, verified, (rows of the chunk, *shape).

        The mapping lives as long as the array, and holds no file open: Arrow's does not, while each of Python's
        keeps a handle, of which a process often has 1,024. Writers replace files and never shorten them, so that
        a mapped chunk stays what it was. Only where `mappable`. Raises `CorruptCacheError`, `CacheReadError`.
        """
        start, after, last = self._extent(chunk)
        with self._reading(chunk), pa.memory_map(str(self.path(chunk))) as file:
            mapped = file.read_buffer()
        whole = np.frombuffer(mapped, np.uint8)[start:][: self.chunk_bytes + len(after) + last]
        span = self.span(chunk)
        size = len(span) * self.row_bytes
        self._check(chunk, crc, extended(0, whole[:size].data), size, whole[size:], whole.size)
        return whole[:size].view(self.dtype).reshape(len(span), *self.shape)

    @property
    def stretches(self) -> bool:
        """Whether chunks are files of whole pages before their checksum, which `map_into` needs."""
        data = self.chunk_bytes - CRC_BYTES
        return self.mappable and self.file_rows == self.chunk_rows and data % PAGE_BYTES == 0

    def map_into(self, stretch: Stretch, chunk: int, crc: int) -> None:
        """Map a chunk's whole pages, verified, to its place among all chunks; raises as `map` does."""
        size = self.chunk_bytes - CRC_BYTES
        with self._reading(chunk):
            found, tail = stretch.place(Path(str(self.path(chunk))), chunk * size, size)
        whole = np.asarray(stretch)[chunk * size :][:size]
        if found < self.chunk_bytes:  # bytes past the file's end must not be touched
            whole = np.zeros(size, np.uint8)
        rows = len(self.span(chunk)) * self.row_bytes
        rest = np.concatenate([whole[rows:], np.frombuffer(tail, np.uint8)])
        self._check(chunk, crc, extended(0, whole[:rows].data), rows, rest, found)

    @contextmanager
    def _reading(self, chunk: int) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            raise self.damaged(chunk, "is missing") from None
        except OSError as error:
            raise CacheReadError(
                f"cannot read '{self.path(chunk)}': {error.strerror or error}; mend that and run the same command "
                "again"
            ) from error

    def _check(self, chunk: int, committed: int, crc: int, size: int, rest: Rows, found: int) -> None:
        """Raise unless a chunk is what was committed: of `found` bytes, `size` of them rows of this crc."""
        start, after, last = self._extent(chunk)
        if found != self.chunk_bytes + len(after):
            more = "at least " if last and found > self.chunk_bytes + len(after) else ""
            expected = self._file_bytes(self._file(chunk))
            raise self.damaged(chunk, f"has {more}{start + found} bytes, expected {expected}")
        padding = self.chunk_bytes - CRC_BYTES - size
        crc = extended(crc, rest[:padding].data)
        if crc != committed or bytes(rest[padding : padding + CRC_BYTES]) != crc_bytes(committed):
            raise self.damaged(chunk, f"has crc32c {crc:08x}, expected {committed:08x}")
        if bytes(rest[padding + CRC_BYTES :][: len(after)]) != after:
            raise self.damaged(chunk, "has another index of its chunks than expected")

    def is_whole(self, chunk: int) -> bool:
        """Whether a chunk's file is there in its full size; its bytes are not read. Only where `mappable`."""
        try:
            return Path(str(self.path(chunk))).stat().st_size == self._file_bytes(self._file(chunk))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def damaged(self, chunk: int, why: str) -> CorruptCacheError:
        """The error that names a chunk's file and rows."""
        span = self.span(chunk)
        then = (
            "run the same `vlpipe extract` again, it encodes only what is lost"
            if self.mappable
            else "upload the store again from the folder where it was written"
        )
        return CorruptCacheError(
            f"'{self.path(chunk)}' {why}; rows {span.start} to {span.stop - 1} are lost: {then}", why
        )
