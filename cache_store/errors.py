"""What can go wrong with features at rest; each kind is one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vlpipe.foundation.errors import StaleError, VlpipeError


class StaleCacheError(StaleError):
    """The store holds features of something else than what is asked for; exit code 4."""


class CorruptCacheError(VlpipeError):
    """A file of the store is missing, short or altered; names the file and the rows that it held.

    `why` says it in a few words where that is known: "is missing".
    """

    def __init__(self, message: str, why: str = "is damaged") -> None:
        super().__init__(message)
        self.why = why


class DamagedError(VlpipeError):
    """A check has found damage, which it has told."""


class NotCachedError(VlpipeError):
    """The store, or some rows of it, have not been encoded (or failed to be)."""


class LockedError(VlpipeError):
    """A block is written without its lock, or the folder cannot lock."""


class ValueRangeError(VlpipeError):
    """A value that cannot be kept: not finite, or out of the stored dtype's range."""


class RowsError(VlpipeError):
    """Rows, ids or positions of the wrong number, name, shape or dtype."""


class ForkedError(VlpipeError):
    """A set of features was opened, then used in a forked process."""


class CacheWriteError(VlpipeError):
    """The disk refused a write; what was committed before is intact."""


class CacheReadError(VlpipeError):
    """The system refused to read a file of the store: too many open files, no permission, a failing disk."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal (full disk, no permission, vanished folder) into `CacheWriteError`."""
    try:
        yield
    except OSError as error:
        raise CacheWriteError(
            f"cannot write to '{path}': {error.strerror or error}; committed blocks are intact: mend that and run "
            "the same command again, it goes on where it stopped"
        ) from error
