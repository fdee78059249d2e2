"""One writer per block, by a lock that dies with its process.

`flock` belongs to the open file, and the system drops it when the process ends, however that happens: a lock file
left by a dead process is no obstacle. Lock files are empty and never removed (removing one races with its next
holder). On a network folder without `flock` nothing could be promised, so writing there is refused; reading needs
no lock. NFS has it, by locks of the server, which all machines respect; those of a machine that dies last until
the server notices, a minute or two. A mount with `nolock` or `local_lock` keeps apart one machine's processes
only: let one machine write there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vlpipe.cache_store.errors import LockedError, writing

_held: set[int] = set()


def _forget_in_child() -> None:
    """A forked worker must not keep its parent's locks alive: closing a copy does not unlock the parent's."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


@contextmanager
def exclusive(path: Path) -> Iterator[bool]:
    """Hold the lock while inside; yields False, at once, when someone else holds it.

    Raises `LockedError` where the file system cannot lock, `CacheWriteError`.
    """
    with writing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    _held.add(handle)
    mine = False
    try:
        mine = _try_lock(handle, path)
        yield mine
    finally:
        if handle in _held:
            _held.remove(handle)
            if mine:
                fcntl.flock(handle, fcntl.LOCK_UN)  # now, also when a worker being forked still has a copy
            os.close(handle)


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock: only looked at, nothing is written.

    The look takes a shared lock for a moment; a writer that claims the block in that moment finds it taken.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def _try_lock(handle: int, path: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise LockedError(
            f"'{path}' cannot be locked ({error.strerror}); write the cache to a folder on a local disk"
        ) from error
    return True
