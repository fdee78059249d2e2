"""Reads one output of a store: resident in memory, mapped, or block by block; the same bytes every way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import Rows, StoredArray
from vlpipe.cache_store.batches import Batches, Epoch, RowBatch, RowSource
from vlpipe.cache_store.committed import committed_blocks, content_hashes
from vlpipe.cache_store.errors import CorruptCacheError, ForkedError, NotCachedError, RowsError, StaleCacheError
from vlpipe.cache_store.group import Group, output_names
from vlpipe.cache_store.ids import Ids, positions_of, read_ids
from vlpipe.cache_store.layout import Status
from vlpipe.cache_store.order import Positions, default_window
from vlpipe.cache_store.places import Place, place_of
from vlpipe.cache_store.snapshots import MEMORY_BUDGET, StrategyName, check_strategy, snapshot
from vlpipe.foundation.errors import UnknownNameError, UsageError
from vlpipe.foundation.files import digest

if TYPE_CHECKING:
    from dask.array import Array


def open_features(
    path: str | Place,
    output: str | None = None,
    *,
    strategy: StrategyName = "auto",
    memory_budget: int = MEMORY_BUDGET,
    storage_options: Mapping[str, Any] | None = None,
) -> FeatureSet:
    """One output of a store, as far as it is committed now; the output may be left out where there is only one.

    `path` is a folder, or a URL such as `s3://bucket/cache/…` (`storage_options` go to its fsspec file system).
    `auto` is resident when the committed rows fit `memory_budget` (bytes), else mapped where the store is local,
    else by blocks. Asked for by name, resident takes what the rows need; blocks keeps within the budget.

    Raises `NotCachedError` for no store, `UsageError` for an output left out or a budget below two chunks,
    `UnknownNameError` for no such output or strategy, `CorruptCacheError`, `StaleCacheError` for a newer format.
    """
    place = place_of(path, storage_options)
    if isinstance(place, Path):
        place = place.absolute()  # this process, or a Dask worker, may be in another folder later
    group = Group.open(place)
    output = _chosen(place, output)
    check_strategy(strategy)
    return FeatureSet(place, output, group, strategy, memory_budget)


class FeatureSet:
    """The rows of one output, by position or id. `usable` says which rows are committed and ok or cut."""

    def __init__(self, path: Place, output: str, group: Group, strategy: StrategyName, memory_budget: int) -> None:
        """Use `open_features`."""
        self.path = path
        self.output = output
        self.manifest, self.encoder, self.side = group.manifest, group.encoder, group.side
        self.constants = dict(group.constants)
        array = StoredArray.open(path / output)
        self.shape, self.dtype, self.fingerprint = array.shape, array.dtype, dict(array.fingerprint)
        self._group, self._array = group, array
        self._committed, self._rows = snapshot(path, group, array, strategy, memory_budget)
        self.strategy = self._rows.name
        self.status, self.usable = self._committed.status, self._committed.usable
        self._process = os.getpid()
        self._reopen = (path, output, strategy, memory_budget)

    def __len__(self) -> int:
        """Rows, usable or not."""
        return len(self.status)

    def __reduce__(self) -> tuple[Callable[..., FeatureSet], tuple[Any, ...]]:
        """A spawned worker opens the store itself, and sees what is committed by then."""
        return _reopened, self._reopen

    @property
    def ids(self) -> list[str]:
        """All ids in row order, as a new list; in a loop keep it, it is large."""
        return list(self.id_column.to_pylist())

    @cached_property
    def id_column(self) -> Ids:
        """All ids in row order, as one Arrow array, read when first asked for; raises `CorruptCacheError`."""
        return read_ids(self.path, self._group.table, self._group.rows)

    @cached_property
    def usable_positions(self) -> Positions:
        """The positions of usable rows, ascending."""
        return np.flatnonzero(self.usable)

    @cached_property
    def content_digest(self) -> str:
        """SHA-256 over what was encoded: the content hash of each usable row, zeros for others, in row order.

        Pictures that were replaced and encoded anew change it; how rows lie in blocks does not. Read when first
        asked for; raises `CorruptCacheError`, `StaleCacheError` when it was written again since the set was
        opened.
        """
        with self._guarded():
            return hashlib.sha256(content_hashes(self.path, self._group, self._committed).data).hexdigest()

    @cached_property
    def revision(self) -> str:
        """SHA-256 of which rows are usable and of the checksums of all committed chunks: of one moment's bytes."""
        found = hashlib.sha256(np.packbits(self.usable).data)
        found.update(np.array(sorted(self._committed.chunks.items()), np.int64).data)
        return found.hexdigest()

    def positions(self, ids: Sequence[str]) -> Positions:
        """The row of each id, in the order asked; raises `RowsError` that names unknown ones."""
        return positions_of(self.id_column, ids)

    def ids_at(self, positions: NDArray[np.integer[Any]]) -> list[str]:
        """The id of each row; raises `RowsError` for positions outside of the store."""
        where = self._inside(positions)
        return list(self.id_column.take(where).to_pylist())

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
        where = self._inside(positions)
        self._check_usable(where)
        if out is None:
            out = np.empty((len(where), *self.shape), self.dtype)
        elif out.shape != (len(where), *self.shape) or out.dtype != self.dtype or not out.flags.c_contiguous:
            raise RowsError(
                f"out has shape {out.shape} and dtype {out.dtype}, expected a contiguous array of shape "
                f"{(len(where), *self.shape)} and dtype {self.dtype}"
            )
        with self._guarded():
            self._rows.take(where, out)
        return out

    def blocks(self) -> Iterator[RowBatch]:
        """All usable rows in row order, a stored chunk at a time: read-only, valid until the next is asked for.

        Not copied where the rows of a chunk are resident or mapped and all usable. Raises as `take` does.
        """
        chunk_rows = self._array.chunk_rows
        numbers = [n for n in self._committed.chunks if self.usable[n * chunk_rows :][:chunk_rows].any()]
        chunks = self._rows.chunks(numbers)
        for number in numbers:
            with self._guarded():
                rows = next(chunks).view()
            rows.flags.writeable = False
            usable = self.usable[number * chunk_rows :][:chunk_rows]
            yield RowBatch(number * chunk_rows + np.flatnonzero(usable), rows if usable.all() else rows[usable])

    def batches(
        self,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world: int = 1,
        drop_last: bool = False,
        window: int | None = None,
        reuse: bool = False,
        worker: int = 0,
        workers: int = 1,
    ) -> Batches:
        """One epoch of the usable rows, each once, in row order or in one that seed and epoch decide.

        Rank `rank` of `world` gets every world-th row of that order, so that the batches of all ranks with one
        number are together a slice of it; `drop_last` gives every rank the same number of whole batches. Rows are
        shuffled within windows of about `window` rows (whole chunks in a random order; by default 1 GiB, at most
        1,048,576 rows), and uniformly where the set fits one window. The order never depends on strategy, memory
        budget or workers. With `reuse` each batch is written over the one before. Of `workers`, worker `worker`
        makes every workers-th batch.

        Raises `UsageError` for impossible numbers; the iterator raises as `take` does.
        """
        window = default_window(self._array.row_bytes) if window is None else window
        wanted = Epoch(batch_size, shuffle, seed, epoch, rank, world, drop_last, window)
        source = RowSource(
            self._rows, self.usable, self._array.chunk_rows, self.shape, self.dtype, self._guarded, self._identity
        )
        return Batches(source, wanted, reuse=reuse, worker=worker, workers=workers)

    def as_numpy(self) -> Rows:
        """All usable rows in row order, as one new array (rows, *shape); raises as `take` does."""
        return self.take(self.usable_positions)

    def as_dask(self) -> Array:
        """All usable rows in row order as a Dask array (rows, *shape), one chunk a stored chunk, read lazily.

        A task holds where its chunk lies and its checksum; a worker, also on another machine that sees the same
        path, reads it itself. Computing raises `CorruptCacheError` for a chunk that is damaged, or was written
        again since.
        """
        from vlpipe.cache_store.dask_rows import dask_rows

        return dask_rows(self._array, self._committed.chunks, self.usable)

    def _identity(self) -> dict[str, str]:
        """Which rows these are: what was encoded, by what, and which of them are usable."""
        return {
            "manifest": self.manifest,
            "side": self.side,
            "output": self.output,
            "fingerprint": digest(self.fingerprint),
            "dtype": str(self.dtype),
            "content": self.content_digest,
            "usable": hashlib.sha256(np.packbits(self.usable).data).hexdigest(),
            "chunk_rows": str(self._array.chunk_rows),
        }

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Refuse a forked process, and tell a block that was written again since from a damaged one."""
        if os.getpid() != self._process:
            raise ForkedError(
                f"'{self.path}' was opened before this process was forked, which can hang; start workers by "
                "'spawn' (torch's DataLoader: multiprocessing_context=\"spawn\"), or open the store in the worker"
            )
        try:
            yield
        except CorruptCacheError:
            now = committed_blocks(self.path, self._group, self._array)
            if (now.chunks, now.content) == (self._committed.chunks, self._committed.content):
                raise
            raise StaleCacheError(
                f"'{self.path}' was written again since it was opened; run the same command again"
            ) from None

    def _inside(self, positions: NDArray[Any]) -> Positions:
        where = np.asarray(positions)
        if where.ndim != 1 or (where.size and where.dtype.kind not in "iu"):
            raise RowsError(
                f"positions have shape {where.shape} and dtype {where.dtype}, expected one axis of integers"
            )
        if where.size and not 0 <= where.min() <= where.max() < len(self):
            raise RowsError(f"positions {where.min()} to {where.max()}, expected 0 to {len(self) - 1}")
        return where.astype(np.int64, copy=False)

    def _check_usable(self, where: Positions) -> None:
        good = self.usable[where]
        if not good.all():
            bad = np.unique(where[~good])
            named = zip(self.ids_at(bad[:3]), self.status[bad[:3]].tolist(), strict=True)
            shown = ", ".join(f"'{name}' ({Status(status).name.lower()})" for name, status in named)
            raise NotCachedError(
                f"'{self.path}' has no usable '{self.output}' for {len(bad)} of the rows asked, first {shown}; "
                "run `vlpipe extract` for absent rows, with --retry-failed for failed ones"
            )


def _chosen(place: Place, output: str | None) -> str:
    known = output_names(place)
    if output is None and len(known) == 1:
        return known[0]
    if output is None and known:
        raise UsageError(f"'{place}' has {len(known)} outputs: name one, {' or '.join(known)}")
    if output not in known:
        raise UnknownNameError(f"output of '{place}'", output or "", known)
    return output


def _reopened(path: Place, output: str, strategy: StrategyName, memory_budget: int) -> FeatureSet:
    return open_features(path, output, strategy=strategy, memory_budget=memory_budget)
