"""Chunk files mapped side by side into one stretch of addresses, so that rows of all are gathered in one go.

NumPy gathers from one array only. Chunk by chunk it needs a Python step for each and a second copy of every row,
half the speed of one mapped file. `mmap` itself can put each file at a chosen address (MAP_FIXED, inside of
addresses reserved first); Python's own module cannot, hence ctypes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

from vlpipe.cache_store.errors import CacheReadError

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
)  # fmt: skip
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

PAGE_BYTES = mmap.PAGESIZE
_FIXED, _NORESERVE, _NONE = 0x10, 0x4000, 0  # the same on x86-64 and arm64 Linux
_FAILED = ctypes.c_void_p(-1).value


class Stretch:
    """Reserved addresses of `size` bytes; NumPy sees them as bytes, read-only, and keeps them while it does.

    A byte where nothing is mapped must not be touched: that ends the process. Raises `CacheReadError` where the
    system has no such addresses.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        try:
            self._start = _mapped(None, size, _NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE, -1)
        except OSError as error:
            raise CacheReadError(
                f"cannot reserve {size} bytes of addresses for mapping ({error.strerror}): raise the limit "
                "(`ulimit -v`), or open with strategy 'blocks'"
            ) from error

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's protocol for memory that another object owns."""
        return {"version": 3, "shape": (self._size,), "typestr": "|u1", "data": (self._start, True)}

    def place(self, path: Path, at: int, size: int) -> tuple[int, bytes]:
        """Map a file's first `size` bytes at a byte of the stretch; both are multiples of the page's size.

        Returns how many bytes the file has, and those after the mapped ones, 64 at most. Raises OSError.
        """
        handle = os.open(path, os.O_RDONLY)
        try:
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE | _FIXED  # read now, without Python's lock
            _mapped(self._start + at, size, mmap.PROT_READ, flags, handle)
            return os.fstat(handle).st_size, os.pread(handle, 64, size)
        finally:
            os.close(handle)

    def __del__(self) -> None:
        if hasattr(self, "_start"):
            _LIBC.munmap(self._start, self._size)


def _mapped(start: int | None, size: int, protection: int, flags: int, handle: int) -> int:
    found: int = _LIBC.mmap(start, size, protection, flags, handle, 0)
    if found == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found
