"""Cached rows for torch's `DataLoader`: the same batches in the same order for any number of workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset, get_worker_info

from vlpipe.cache_store.batches import Batches
from vlpipe.cache_store.errors import StaleCacheError
from vlpipe.cache_store.reader import FeatureSet, open_features
from vlpipe.foundation.errors import UsageError, VlpipeError


class TensorBatch(NamedTuple):
    """Some rows: `positions` (rows,) int64 in the store, and `rows` (rows, *shape) in the stored dtype."""

    positions: torch.Tensor
    rows: torch.Tensor


class FeatureDataset(IterableDataset[TensorBatch]):
    """Batches of one feature set, for `DataLoader(dataset, batch_size=None, multiprocessing_context="spawn")`.

    `features` may be the path of a store with one output. Takes the settings of `FeatureSet.batches`, but for
    `reuse`; `set_epoch` goes to another epoch. Worker w of N makes batches w, w + N, ..., which the loader puts in
    turn again; each opens the store itself. Iterating raises as `FeatureSet.take` does, so `ForkedError` in a
    worker that was forked; `StaleCacheError` where the store was written since it was opened; and `UsageError` in
    a persistent worker that would repeat an epoch, because its copy is out of reach of `set_epoch`.
    """

    def __init__(self, features: FeatureSet | str | Path, batch_size: int, **settings: Any) -> None:
        self._features = features if isinstance(features, FeatureSet) else open_features(features)
        self._settings = {"batch_size": batch_size, "epoch": 0, **settings}
        self._revision = self._features.revision
        self._state: Mapping[str, Any] | None = None
        self._worker: Any = None  # that has iterated this copy
        self._batches()  # impossible settings are told here, not in a worker

    def __len__(self) -> int:
        """Batches of the whole epoch."""
        return len(self._batches())

    def __iter__(self) -> Iterator[TensorBatch]:
        """The batches of this worker; what is wrong is raised with the first, where the loader hands it on."""
        if self._features.revision != self._revision:  # a worker opened it later: its order would be another
            raise StaleCacheError(
                f"'{self._features.path}' was written since it was opened; run the same command again"
            )
        worker, state = get_worker_info(), self._state
        if worker and worker is self._worker and (state or self._settings.get("shuffle")):
            raise UsageError(
                "a persistent worker would repeat its epoch: neither set_epoch() nor load_state_dict() reach it; "
                "give the DataLoader persistent_workers=False"
            )
        self._worker = worker
        batches = self._batches()
        if worker:  # the loader asks worker 0 first: its batch is the next one, wherever the epoch goes on
            turn = (state["batch"] if state else 0) + worker.id
            batches = self._batches(turn % worker.num_workers, worker.num_workers)
        if state:
            batches.load_state_dict(state)
        for batch in batches:
            yield TensorBatch(*map(torch.from_numpy, batch))

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of another epoch; counts from the next iteration on."""
        self._settings["epoch"], self._state = epoch, None

    def state_dict(self, batches_done: int) -> dict[str, Any]:
        """The state after so many batches of the epoch were used: workers make some ahead, only the user knows."""
        return {**self._batches().state_dict(), "batch": batches_done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on in the state's epoch, after the batches that were used.

        Raises `StaleCacheError` as `Batches.load_state_dict` does.
        """
        own = self._settings["epoch"]
        self._settings["epoch"] = state.get("epoch", own)
        try:
            self._batches().load_state_dict(state)
        except VlpipeError:
            self._settings["epoch"] = own
            raise
        self._state = dict(state)

    def _batches(self, worker: int = 0, workers: int = 1) -> Batches:
        return self._features.batches(**self._settings, reuse=False, worker=worker, workers=workers)
