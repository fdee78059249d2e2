"""One array of a store as plain chunk files, read and written without going through zarr's own indexing.

A chunk file is its rows' little-endian bytes, filled up with zeros to whole chunks, and their crc32c in 4 bytes:
what Zarr v3 calls the codecs `bytes` and `crc32c`. Written directly because the marker needs each file's checksum
and because a file has to be fsynced; read directly because zarr's fancy indexing is a hundred times slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vlpipe.cache_store.durable import write_durable
from vlpipe.cache_store.errors import CacheReadError, CorruptCacheError
from vlpipe.cache_store.metadata import read_node

CRC_BYTES = 4
Rows = NDArray[Any]


@dataclass(frozen=True)
class StoredArray:
    """Where an array's rows lie: chunk `n` holds the rows from `n * chunk_rows` on."""

    folder: Path
    rows: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int
    fingerprint: Mapping[str, str]

    @classmethod
    def open(cls, folder: Path) -> StoredArray:
        """Read an array's metadata; raises `CorruptCacheError`."""
        content = read_node(folder)
        rows, *shape = content["array"]["shape"]
        chunk_rows = content["array"]["chunk_grid"]["configuration"]["chunk_shape"][0]
        dtype = np.dtype(content["array"]["data_type"]).newbyteorder("<")
        return cls(folder, rows, tuple(shape), dtype, chunk_rows, content["fingerprint"])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def file_bytes(self) -> int:
        """Bytes of every chunk file: whole chunks also at the end, and the checksum."""
        return self.chunk_rows * self.row_bytes + CRC_BYTES

    def path(self, chunk: int) -> Path:
        """A chunk's file, in Zarr's default key encoding."""
        return self.folder.joinpath("c", str(chunk), *("0" for _ in self.shape))

    def span(self, chunk: int) -> range:
        """The rows of a chunk."""
        return range(chunk * self.chunk_rows, min(self.rows, (chunk + 1) * self.chunk_rows))

    def chunks(self, rows: range) -> range:
        """The chunks of a block's rows; blocks begin where chunks do."""
        return range(rows.start // self.chunk_rows, -(-rows.stop // self.chunk_rows))

    def write(self, rows: range, values: Rows) -> list[int]:
        """Write a block's rows in the array's dtype, (rows, *shape); returns the crc32c of each chunk file."""
        flat = np.ascontiguousarray(values, self.dtype).reshape(len(rows), -1).view(np.uint8)
        return [self._write_chunk(chunk, flat, rows.start) for chunk in self.chunks(rows)]

    def _write_chunk(self, chunk: int, flat: NDArray[np.uint8], start: int) -> int:
        span = self.span(chunk)
        data = flat[span.start - start : span.stop - start].reshape(-1)
        padding = np.zeros(self.file_bytes - CRC_BYTES - data.nbytes, np.uint8)
        crc: int = google_crc32c.extend(google_crc32c.value(data), padding)
        path = self.path(chunk)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durable(path, (data.data, padding.data, crc.to_bytes(CRC_BYTES, "little")))
        return crc

    def read(self, chunk: int, crc: int, out: Rows) -> None:
        """Read a chunk's rows into `out`, (rows of the chunk, *shape), contiguous.

        Raises `CorruptCacheError`, `CacheReadError`.
        """
        data = out.reshape(-1).view(np.uint8)
        with self._reading(chunk), self.path(chunk).open("rb", buffering=0) as file:
            filled = file.readinto(data.data)
            rest = file.read()
        if filled + len(rest) != self.file_bytes:
            raise self.damaged(chunk, f"has {filled + len(rest)} bytes, expected {self.file_bytes}")
        self._check(chunk, crc, google_crc32c.extend(google_crc32c.value(data), rest[:-CRC_BYTES]), rest)

    def read_rows(self, rows: range, crcs: Sequence[int]) -> Rows:
        """A block's rows, (rows, *shape), given the crc32c of its chunks; raises `CorruptCacheError`."""
        out = np.empty((len(rows), *self.shape), self.dtype)
        for chunk, crc in zip(self.chunks(rows), crcs, strict=True):
            span = self.span(chunk)
            self.read(chunk, crc, out[span.start - rows.start : span.stop - rows.start])
        return out

    def map(self, chunk: int, crc: int) -> Rows:
        """Map a chunk's rows read-only, verified, (rows of the chunk, *shape).

        The mapping lives as long as the array, and holds no file open: Arrow's does not, while each of Python's
        keeps a handle, of which a process often has 1,024. Writers replace files and never shorten them, so that
        a mapped chunk stays what it was. Raises `CorruptCacheError`, `CacheReadError`.
        """
        with self._reading(chunk), pa.memory_map(str(self.path(chunk))) as file:
            mapped = file.read_buffer()
        if mapped.size != self.file_bytes:
            raise self.damaged(chunk, f"has {mapped.size} bytes, expected {self.file_bytes}")
        whole = np.frombuffer(mapped, np.uint8)
        data = whole[:-CRC_BYTES]
        self._check(chunk, crc, google_crc32c.value(data), whole[-CRC_BYTES:].tobytes())
        span = self.span(chunk)
        return data[: len(span) * self.row_bytes].view(self.dtype).reshape(len(span), *self.shape)

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

    def _check(self, chunk: int, committed: int, found: int, tail: bytes) -> None:
        if found != committed or tail[-CRC_BYTES:] != committed.to_bytes(CRC_BYTES, "little"):
            raise self.damaged(chunk, f"has crc32c {found:08x}, expected {committed:08x}")

    def is_whole(self, chunk: int) -> bool:
        """Whether a chunk's file is there in its full size; its bytes are not read."""
        try:
            return self.path(chunk).stat().st_size == self.file_bytes
        except (FileNotFoundError, NotADirectoryError):
            return False

    def damaged(self, chunk: int, why: str) -> CorruptCacheError:
        """The error that names a chunk's file and rows."""
        span = self.span(chunk)
        return CorruptCacheError(
            f"'{self.path(chunk)}' {why}; rows {span.start} to {span.stop - 1} are lost: delete that file, "
            "if it is there, and run the same `vlpipe extract` again, it encodes only the rows of its block"
        )
