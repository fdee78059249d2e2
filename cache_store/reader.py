"""Reads one output of a store: resident in memory, or mapped from its chunk files; the same bytes either way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import Rows, StoredArray
from vlpipe.cache_store.committed import Committed, committed_blocks, content_hashes
from vlpipe.cache_store.errors import CorruptCacheError, ForkedError, NotCachedError, RowsError, StaleCacheError
from vlpipe.cache_store.group import Group, output_names
from vlpipe.cache_store.ids import positions_of, read_ids
from vlpipe.cache_store.layout import Status
from vlpipe.cache_store.strategies import Mapped, Resident
from vlpipe.foundation.errors import UnknownNameError

Strategy = Literal["auto", "resident", "mapped"]


def open_features(
    path: Path, output: str, *, strategy: Strategy = "auto", memory_budget: int = 4 << 30
) -> FeatureSet:
    """One output of a store, as far as it is committed now.

    `auto` is resident when the committed rows fit `memory_budget` (bytes), else mapped. Raises `NotCachedError`
    for no store, `UnknownNameError` for no such output, `CorruptCacheError`, `StaleCacheError` for a newer format.
    """
    path = Path(path)
    group = Group.open(path)
    if output not in output_names(path):
        raise UnknownNameError(f"output of '{path}'", output, output_names(path))
    if strategy not in get_args(Strategy):
        raise UnknownNameError("reading strategy", strategy, get_args(Strategy))
    return FeatureSet(path, output, group, strategy, memory_budget)


class FeatureSet:
    """The rows of one output, by position or id. `usable` says which rows are committed and ok or cut."""

    def __init__(self, path: Path, output: str, group: Group, strategy: Strategy, memory_budget: int) -> None:
        """Use `open_features`."""
        self.path = path
        self.output = output
        self.manifest, self.encoder, self.side = group.manifest, group.encoder, group.side
        self.constants = dict(group.constants)
        array = StoredArray.open(path / output)
        self.shape, self.dtype, self.fingerprint = array.shape, array.dtype, dict(array.fingerprint)
        self._ids = read_ids(path, group.table, group.rows)
        self._group, self._array = group, array
        self._committed, self._rows = _opened(path, group, array, strategy, memory_budget)
        self.strategy = self._rows.name
        self.status, self.usable = self._committed.status, self._committed.usable
        self._process = os.getpid()
        self._reopen = (path, output, strategy, memory_budget)

    @property
    def ids(self) -> list[str]:
        """All ids in row order, as a new list; in a loop keep it, it is large."""
        return list(self._ids.to_pylist())

    @cached_property
    def content_digest(self) -> str:
        """SHA-256 over what was encoded: the content hash of each usable row, zeros for others, in row order.

        Pictures that were replaced and encoded anew change it; how rows lie in blocks does not. Read when first
        asked for; raises `CorruptCacheError`, `StaleCacheError` when it was written again since the set was
        opened.
        """
        with self._of_one_moment():
            return hashlib.sha256(content_hashes(self.path, self._group, self._committed).tobytes()).hexdigest()

    def __len__(self) -> int:
        """Rows, usable or not."""
        return len(self.status)

    def __reduce__(self) -> tuple[Callable[..., FeatureSet], tuple[Any, ...]]:
        """A spawned worker opens the store itself, and sees what is committed by then."""
        return _reopened, self._reopen

    def positions(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The row of each id, in the order asked; raises `RowsError` that names unknown ones."""
        return positions_of(self._ids, ids)

    def rows(self, ids: Sequence[str]) -> Rows:
        """The rows of some ids, (rows, *shape), in the order asked; raises as `positions` and `take`."""
        return self.take(self.positions(ids))

    def take(self, positions: NDArray[np.integer[Any]], out: Rows | None = None) -> Rows:
        """Rows by position, in any order and repeated at will, (rows, *shape), in the stored dtype.

        `out`, when given, is filled and returned: contiguous, of that shape and dtype. Raises `NotCachedError`
        that names rows that are not usable, `RowsError` for positions outside of the store or another `out`,
        `CorruptCacheError` for a chunk found damaged at its first use, `StaleCacheError` for one that was written
        again since, `ForkedError` after a fork.
        """
        if os.getpid() != self._process:
            raise ForkedError(
                f"'{self.path}' was opened before this process was forked, which can hang; start workers by "
                "'spawn', or open the store in the worker"
            )
        where = np.asarray(positions)
        self._check(where)
        if out is None:
            out = np.empty((len(where), *self.shape), self.dtype)
        elif out.shape != (len(where), *self.shape) or out.dtype != self.dtype or not out.flags.c_contiguous:
            raise RowsError(
                f"out has shape {out.shape} and dtype {out.dtype}, expected a contiguous array of shape "
                f"{(len(where), *self.shape)} and dtype {self.dtype}"
            )
        with self._of_one_moment():
            self._rows.take(where, out)
        return out

    @contextmanager
    def _of_one_moment(self) -> Iterator[None]:
        """Tell a block that was written again since the set was opened from a damaged one."""
        try:
            yield
        except CorruptCacheError:
            now = committed_blocks(self.path, self._group, self._array)
            if (now.chunks, now.content) == (self._committed.chunks, self._committed.content):
                raise
            raise StaleCacheError(
                f"'{self.path}' was written again since it was opened; run the same command again"
            ) from None

    def _check(self, where: NDArray[Any]) -> None:
        if where.ndim != 1 or (where.size and where.dtype.kind not in "iu"):
            raise RowsError(
                f"positions have shape {where.shape} and dtype {where.dtype}, expected one axis of integers"
            )
        if where.size and not 0 <= where.min() <= where.max() < len(self):
            raise RowsError(f"positions {where.min()} to {where.max()}, expected 0 to {len(self) - 1}")
        good = self.usable[where]
        if not good.all():
            bad = np.unique(where[~good])
            shown = ", ".join(
                f"'{self._ids[int(p)].as_py()}' ({Status(self.status[p]).name.lower()})" for p in bad[:3]
            )
            raise NotCachedError(
                f"'{self.path}' has no usable '{self.output}' for {len(bad)} of the rows asked, first {shown}; "
                "run `vlpipe extract` for absent rows, with --retry-failed for failed ones"
            )


def _opened(
    path: Path, group: Group, array: StoredArray, strategy: Strategy, memory_budget: int
) -> tuple[Committed, Resident | Mapped]:
    """Status and rows of one moment: when a writer replaced a block in between, both are read again."""
    while True:
        committed = committed_blocks(path, group, array)
        fits = len(committed.chunks) * array.file_bytes <= memory_budget
        try:
            if strategy == "resident" or (strategy == "auto" and fits):
                return committed, Resident(array, committed.chunks)
            return committed, Mapped(array, committed.chunks)
        except CorruptCacheError:
            if committed_blocks(path, group, array).chunks == committed.chunks:
                raise


def _reopened(path: Path, output: str, strategy: Strategy, memory_budget: int) -> FeatureSet:
    return open_features(path, output, strategy=strategy, memory_budget=memory_budget)
