"""An epoch's rows as batches: the same ones for every strategy, budget and number of workers, from any point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import Rows
from vlpipe.cache_store.errors import StaleCacheError
from vlpipe.cache_store.gather import Run
from vlpipe.cache_store.order import EpochOrder, Positions
from vlpipe.cache_store.strategies import Strategy
from vlpipe.foundation.errors import UsageError, VlpipeError

MOST = {"batch_size": 1 << 40, "seed": (1 << 64) - 1, "epoch": (1 << 32) - 1, "world": 1 << 32, "window": 1 << 40}
LEAST = {"batch_size": 1, "seed": 0, "epoch": 0, "world": 1, "window": 1}


class RowBatch(NamedTuple):
    """Some rows: `positions` (rows,) in the store, and `rows` (rows, *shape) in the stored dtype."""

    positions: Positions
    rows: Rows


@dataclass(frozen=True)
class Epoch:
    """All that decides which rows come in which batch of one rank. Raises `UsageError` for impossible numbers."""

    batch_size: int
    shuffle: bool
    seed: int
    epoch: int
    rank: int
    world: int
    drop_last: bool
    window: int

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            object.__setattr__(self, name, _whole(name, getattr(self, name), least, MOST[name]))
        object.__setattr__(self, "rank", _whole("rank", self.rank, 0, self.world - 1))

    def rows(self, total: int) -> int:
        """How many of so many rows this rank gets: those at places rank, rank + world, ... of the order."""
        if self.drop_last:
            return total // (self.world * self.batch_size) * self.batch_size
        return -(-max(0, total - self.rank) // self.world)


@dataclass(frozen=True)
class RowSource:
    """Where batches get their rows: usable ones, by a strategy, each use of which is guarded.

    `identity` says, when asked, which rows these are; a state of others is refused.
    """

    strategy: Strategy
    usable: NDArray[np.bool_]
    chunk_rows: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    guard: Callable[[], AbstractContextManager[None]]
    identity: Callable[[], Mapping[str, Any]]


class Batches(Iterator[RowBatch]):
    """The batches of one rank's epoch, one after the other; `len` is how many there are in the whole epoch.

    A worker makes batches `worker`, `worker + workers`, ...: put in turn, all workers' batches are the epoch's.
    With `reuse`, every batch is written over the one before; without, each is a new array.
    """

    def __init__(self, source: RowSource, epoch: Epoch, *, reuse: bool, worker: int = 0, workers: int = 1) -> None:
        _whole("workers", workers, 1, 1 << 32)
        _whole("worker", worker, 0, workers - 1)
        self._source, self._epoch, self._reuse = source, epoch, reuse
        self._worker, self._workers = worker, workers
        self._order = EpochOrder(
            source.usable, source.chunk_rows, window=epoch.window, shuffle=epoch.shuffle, seed=epoch.seed,
            epoch=epoch.epoch,
        )  # fmt: skip
        self._rows = epoch.rows(self._order.rows)
        self._next = 0
        self._made: Iterator[RowBatch] | None = None

    def __len__(self) -> int:
        """Batches of the rank's whole epoch, whichever worker makes them."""
        return -(-self._rows // self._epoch.batch_size)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> RowBatch:
        """The next batch; raises as `FeatureSet.take` does, and tries the same one again when called once more."""
        with self._source.guard():
            if self._made is None:
                self._made = self._making()
            try:
                batch = next(self._made, None)
            except VlpipeError:
                self._made = None
                raise
        if batch is None:
            raise StopIteration
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands, and what it is an epoch of: plain numbers and texts, which JSON keeps."""
        return {"batch": self._next, **asdict(self._epoch), **self._source.identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another iterator stood: its next batch comes next.

        Raises `StaleCacheError` that names every difference between what the two are made from.
        """
        own = self.state_dict()
        differs = [name for name in own if name != "batch" and state.get(name) != own[name]]
        if differs or not isinstance(state.get("batch"), int):
            told = [f"{name} is {own[name]!r}, in the state {state.get(name)!r}" for name in differs]
            raise StaleCacheError(
                f"the state is of other batches: {'; '.join(told) or 'it has no batch number'}; load it into an "
                "epoch of the same rows and settings, or begin a new epoch"
            )
        self._next = min(max(0, state["batch"]), len(self))
        self._made = None

    def _making(self) -> Iterator[RowBatch]:
        """Batches, each filled from one run of rows or from several."""
        size = self._epoch.batch_size
        kept = self._new(min(size, self._rows)) if self._reuse else None
        first = self._next + (self._worker - self._next) % self._workers
        numbers = iter(range(first, len(self), self._workers))
        batch, filled, number = None, 0, 0
        for run in self._runs():
            start = 0
            while start < len(run.positions):
                if batch is None:
                    number = next(numbers)
                    count = min(size, self._rows - number * size)
                    batch = RowBatch(*(part[:count] for part in kept)) if kept else self._new(count)
                stop = min(len(run.positions), start + len(batch.rows) - filled)
                part = slice(filled, filled + stop - start)
                batch.positions[part] = run.positions[start:stop]
                run.fill(start, stop, batch.rows[part])
                start, filled = stop, part.stop
                if filled == len(batch.rows):
                    self._next = number + 1
                    yield batch
                    batch, filled = None, 0

    def _new(self, count: int) -> RowBatch:
        return RowBatch(np.empty(count, np.int64), np.empty((count, *self._source.shape), self._source.dtype))

    def _runs(self) -> Iterator[Run]:
        windows = range(self._order.windows)
        batches = max(len(self._places(window)) for window in windows) // self._epoch.batch_size
        most = (batches // self._workers + 2) * self._epoch.batch_size  # a window may cut a batch at both ends
        return self._source.strategy.runs((self._positions(window) for window in windows), most)

    def _places(self, window: int) -> range:
        """Which of the rank's rows lie in a window and are still to come."""
        start, stop = self._order.starts[window : window + 2]
        rank, world = self._epoch.rank, self._epoch.world
        own = range(-((rank - start) // world), min(self._rows, -((rank - stop) // world)))
        return own[max(0, self._next * self._epoch.batch_size - own.start) :]

    def _positions(self, window: int) -> Positions:
        """The rows of a window that this worker of this rank gives, in order."""
        own = self._places(window)
        if not own:
            return np.empty(0, np.int64)
        first = own.start * self._epoch.world + self._epoch.rank - self._order.starts[window]
        rows = self._order.window(window)[first :: self._epoch.world][: len(own)]
        if self._workers == 1:
            return rows
        batch = np.arange(own.start, own.stop) // self._epoch.batch_size
        mine: Positions = rows[batch % self._workers == self._worker]
        return mine


def _whole(name: str, given: int | np.integer[Any], least: int, most: int) -> int:
    """The number as Python's own, which JSON keeps; NumPy's whole numbers are numbers, too."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or not least <= given <= most:
        raise UsageError(f"{name} {given!r}: expected a whole number from {least} to {most}")
    return int(given)
