"""Where a store is read from: a local folder, or a URL of any file system that fsspec knows (`s3://…`).

A `Place` is the little of `pathlib.Path` that reading a store needs. Local paths are one as they are; a remote one
names an object of a bucket. Only reading: a store is written to a local folder, where renames and locks hold.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, Self, TypeVar

from vlpipe.cache_store.errors import CacheReadError
from vlpipe.foundation.errors import UsageError

# How many objects are asked for at a time: small ones cost a round trip of 10 to 100 milliseconds each; chunks are
# of about 16 MiB, and in memory twice while they arrive.
REQUESTS = 32
CHUNK_REQUESTS = 4
URL = re.compile("[A-Za-z][A-Za-z0-9+.-]+:/")  # one slash: pathlib drops the second

Item = TypeVar("Item")
Result = TypeVar("Result")


class Place(Protocol):
    """A file or folder, local or remote."""

    @property
    def name(self) -> str:
        """The last part."""

    @property
    def parent(self) -> Self:
        """The folder that it lies in."""

    def __truediv__(self, name: str, /) -> Self: ...

    def read_bytes(self) -> bytes:
        """The whole file; raises FileNotFoundError."""

    def exists(self) -> bool:
        """Whether it is there."""

    def glob(self, pattern: str, /) -> Iterable[Self]:
        """What lies below under names of a pattern."""


@dataclass(frozen=True)
class RemotePlace:
    """An object or prefix of a remote file system. Whatever that raises comes as `CacheReadError`, one line."""

    files: Any = field(compare=False)  # fsspec has no types
    path: str

    @property
    def name(self) -> str:
        """The last part."""
        return PurePosixPath(self.path).name

    @property
    def parent(self) -> RemotePlace:
        """The prefix that it lies under."""
        return RemotePlace(self.files, self.path.rpartition("/")[0])

    def __truediv__(self, name: str) -> RemotePlace:
        return RemotePlace(self.files, f"{self.path.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return str(self.files.unstrip_protocol(self.path))

    def exists(self) -> bool:
        """Whether there is an object, or any below; raises `CacheReadError`."""
        with self._reading():
            return bool(self.files.exists(self.path))

    def read_bytes(self) -> bytes:
        """The whole object; raises FileNotFoundError, `CacheReadError`."""
        with self._reading():  # without a start s3fs would ask for the size first: a second round trip
            return bytes(self.files.cat_file(self.path, start=0))

    def read_range(self, start: int, size: int) -> bytes:
        """Up to `size` bytes from `start` on, by one request; raises as `read_bytes`."""
        with self._reading(), self._shorter():
            return bytes(self.files.cat_file(self.path, start=start, end=start + size))
        return b""

    def glob(self, pattern: str) -> list[RemotePlace]:
        """Objects below; raises `CacheReadError`."""
        with self._reading():
            found = self.files.glob(f"{glob.escape(self.path)}/{pattern}")
        return [RemotePlace(self.files, path) for path in found]

    def size(self) -> int:
        """Bytes of all objects below; raises `CacheReadError`."""
        with self._reading():
            return int(self.files.du(self.path))

    @contextmanager
    def _shorter(self) -> Iterator[None]:
        """A range that begins at the object's end or later is empty, as for a local file; S3 refuses it."""
        try:
            yield
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:  # each file system has its own: botocore's are no OSError
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CacheReadError(
                f"cannot read '{self}': {why}; check the address, the connection and the credentials (profile and "
                "environment, or storage_options)"
            ) from error


def place_of(path: str | Place, storage_options: Mapping[str, Any] | None = None) -> Place:
    """A local path or `SCHEME://…` as a place; `storage_options` go to fsspec's file system.

    Raises `UsageError` for a scheme that is unknown or whose library is missing, and for options of a local path.
    """
    scheme, separator, _ = path.partition("://") if isinstance(path, str) else ("", "", "")
    if not separator:
        if storage_options:
            raise UsageError(f"storage_options for '{path}': expected a URL such as s3://bucket/cache/…")
        if isinstance(path, Path) and URL.match(str(path)):
            raise UsageError(f"'{path}' is a URL as a Path, which loses a slash: give it as text")
        return Path(path) if isinstance(path, str) else path
    import fsspec

    try:
        files, inner = fsspec.core.url_to_fs(path, **(storage_options or {}))
    except ImportError as error:
        needs = "pip install 'vlpipe[remote]'" if scheme == "s3" else str(error)
        raise UsageError(f"reading '{path}' needs another library: {needs}") from error
    except ValueError as error:
        raise UsageError(f"cannot read '{path}': {error}; expected a URL such as s3://bucket/cache/…") from error
    if "file" in (files.protocol, *files.protocol):
        return Path(inner)
    files.invalidate_cache()  # a listing of before would hide what was uploaded since
    return RemotePlace(files, inner.rstrip("/"))


def refuse_remote(path: Path) -> None:
    """A store is written to a local folder only; raises `UsageError` for a URL, also when pathlib cut it."""
    if URL.match(str(path)):
        raise UsageError(
            f"'{path}' is a URL, expected a folder: write the cache to a local one and upload it with your own "
            "tools, for example `aws s3 sync cache s3://bucket/cache`; open_features() then reads its URL"
        )


def read_whole(place: Place) -> bytes:
    """A file's bytes; none where the disk fails at it, which is damage that a new file mends.

    Raises FileNotFoundError, `CacheReadError`.
    """
    try:
        return place.read_bytes()
    except NotADirectoryError as error:
        raise FileNotFoundError(*error.args) from error
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.EIO:
            return b""
        raise CacheReadError(
            f"cannot read '{place}': {error.strerror or error}; mend that and run the same command again"
        ) from error


def read_into(
    place: Place, start: int, pieces: Iterable[memoryview], rest: memoryview, seen: Callable[[memoryview], None]
) -> int:
    """Fill the pieces and then the rest from a byte of a file on; returns how many bytes there were.

    Each piece is `seen` as soon as it is full. Raises FileNotFoundError, OSError, `CacheReadError`.
    """
    if isinstance(place, RemotePlace):
        return _copied(place, start, list(pieces), rest, seen)
    found = 0
    with open(str(place), "rb", buffering=0) as file:  # noqa: PTH123
        for piece in pieces:
            count = _filled(file.fileno(), piece, start + found)
            found += count
            if count < piece.nbytes:
                return found
            seen(piece)
        return found + _filled(file.fileno(), rest, start + found)


def _filled(handle: int, piece: memoryview, start: int) -> int:
    """One read may be cut short; returns the bytes there were."""
    found = 0
    while found < piece.nbytes and (count := os.preadv(handle, [piece[found:]], start + found)):
        found += count
    return found


def _copied(
    place: RemotePlace, start: int, pieces: list[memoryview], rest: memoryview, seen: Callable[[memoryview], None]
) -> int:
    data = memoryview(place.read_range(start, sum(piece.nbytes for piece in (*pieces, rest))))
    done = 0
    for piece in (*pieces, rest):
        part = data[done : done + piece.nbytes]
        piece[: len(part)] = part
        done += len(part)
        if piece is not rest and len(part) == piece.nbytes:
            seen(piece)
    return len(data)


def each(
    place: Place, work: Callable[[Item], Result], items: Iterable[Item], requests: int = REQUESTS
) -> Iterator[Result]:
    """The work's results, in order; `requests` at a time where the place is remote and each is waited for."""
    if not isinstance(place, RemotePlace):
        yield from map(work, items)
        return
    with ThreadPoolExecutor(requests) as pool:
        yield from pool.map(work, items)


def tree_bytes(place: Place) -> int:
    """Bytes of all files below a folder."""
    return place.size() if isinstance(place, RemotePlace) else sum(map(_size, place.glob("**/*")))


def _size(path: Any) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:  # a writer's unfinished file, renamed since it was listed
        return 0
