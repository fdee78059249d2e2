"""Rows in other processes: torch's workers, Dask's, and the memory that a process takes."""

from __future__ import annotations

import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from vlpipe.cache_store import torch_dataset
from vlpipe.cache_store.errors import CorruptCacheError, ForkedError, StaleCacheError
from vlpipe.cache_store.layout import ArraySpec
from vlpipe.cache_store.reader import FeatureSet, open_features
from vlpipe.cache_store.torch_dataset import FeatureDataset
from vlpipe.foundation.errors import UsageError

OUTPUTS = {"tokens": ArraySpec((3, 2), "float32"), "norm": ArraySpec(())}
FAILED = [9, 33, 34, 35]


@pytest.fixture(scope="module")
def path(sample: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store: Path = tmp_path_factory.mktemp("workers") / "a.zarr"
    sample.fill(sample.open_writer(store, OUTPUTS), OUTPUTS, status=sample.statuses(failed=FAILED))
    return store


@pytest.fixture
def features(path: Path) -> FeatureSet:
    return open_features(path, "tokens", strategy="mapped")


def collected(loader: Any) -> list[tuple[list[int], bytes]]:
    return [(batch.positions.tolist(), batch.rows.numpy().tobytes()) for batch in loader]


def loader(dataset: FeatureDataset, workers: int) -> Any:
    return DataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context="spawn" if workers else None
    )


def test_any_number_of_workers_gives_the_same_stream(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [
        (positions.tolist(), rows.tobytes())
        for positions, rows in features.batches(4, shuffle=True, seed=3, epoch=2)
    ]
    dataset = FeatureDataset(features, 4, shuffle=True, seed=3)
    dataset.set_epoch(2)
    assert len(dataset) == len(wanted) == 9
    assert collected(loader(dataset, 0)) == wanted
    for start in (0, 3, 8, 9):
        dataset.load_state_dict(dataset.state_dict(start))
        for workers in (1, 2, 3, 4):
            parts = []
            for worker in range(workers):
                told = SimpleNamespace(id=worker, num_workers=workers)
                monkeypatch.setattr(torch_dataset, "get_worker_info", lambda told=told: told)
                parts.append(collected(dataset))
            in_turn = [batch for batches in zip_longest(*parts) for batch in batches if batch]
            assert in_turn == wanted[start:]


def test_spawned_workers_open_the_store_themselves(features: FeatureSet) -> None:
    wanted = collected(FeatureDataset(features, 4, shuffle=True))
    dataset = FeatureDataset(features, 4, shuffle=True)
    dataset.load_state_dict(dataset.state_dict(3))
    assert collected(loader(dataset, 0)) == wanted[3:]
    assert collected(loader(dataset, 2)) == wanted[3:]


def test_a_worker_that_sees_another_moment_is_refused(sample: Any, store: Path) -> None:
    writer = sample.open_writer(store, OUTPUTS)
    sample.fill(writer, OUTPUTS, blocks=[0, 1])
    dataset = FeatureDataset(open_features(store, "tokens"), 4)
    assert len(collected(dataset)) == 4
    sample.fill(writer, OUTPUTS, blocks=[2])
    dataset._features = open_features(store, "tokens")  # what a spawned worker does
    with pytest.raises(StaleCacheError, match="was written since it was opened"):
        list(dataset)


def test_a_path_will_do(sample: Any, full: Path, store: Path) -> None:
    with pytest.raises(UsageError, match="has 3 outputs: name one, norm or pooled or tokens"):
        FeatureDataset(full, 4)
    only = store.with_name("b.zarr")
    sample.fill(sample.open_writer(only, {"norm": ArraySpec(())}), ["norm"])
    assert collected(FeatureDataset(str(only), 4)) == collected(FeatureDataset(open_features(only), 4))


def test_batches_are_tensors(sample: Any, features: FeatureSet) -> None:
    batch = next(iter(FeatureDataset(features, 4)))
    assert (batch.positions.dtype, batch.rows.dtype) == (torch.int64, torch.float32)
    np.testing.assert_array_equal(batch.rows.numpy(), sample.values("tokens")[:4])


def test_states_of_a_data_set(features: FeatureSet) -> None:
    dataset = FeatureDataset(features, 4, shuffle=True)
    dataset.set_epoch(5)
    state = dataset.state_dict(8)
    again = FeatureDataset(features, 4, shuffle=True)
    again.load_state_dict(state)  # of epoch 5: it goes on there
    assert collected(again) == collected(dataset)[8:]
    again.set_epoch(5)
    assert collected(again) == collected(dataset)
    other = FeatureDataset(features, 4, shuffle=True, seed=1)
    with pytest.raises(StaleCacheError, match="seed is 1"):
        other.load_state_dict(state)
    assert other.state_dict(0)["epoch"] == 0  # as it was
    with pytest.raises(UsageError, match="batch_size 0"):
        FeatureDataset(features, 0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_worker_is_refused(features: FeatureSet) -> None:
    dataset = FeatureDataset(features, 4)
    forked = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(ForkedError, match='multiprocessing_context="spawn"'):
        list(forked)


@pytest.mark.parametrize("name", list(OUTPUTS))
def test_as_dask(sample: Any, path: Path, name: str) -> None:
    features = open_features(path, name, strategy="mapped")
    stored = sample.values(name).astype(OUTPUTS[name].dtype)[features.usable]
    lazy = features.as_dask()
    assert lazy.chunks[0] == (8, 7, 8, 8, 2)  # a chunk a stored one, without the failed rows
    assert (lazy.dtype, lazy.shape) == (stored.dtype, stored.shape)
    np.testing.assert_array_equal(lazy.compute(scheduler="sync"), stored, strict=True)
    np.testing.assert_array_equal(lazy.compute(scheduler="threads"), stored, strict=True)
    np.testing.assert_allclose(lazy.mean(axis=0).compute(), stored.mean(axis=0, dtype=np.float64), atol=1e-3)
    assert open_features(path, name, strategy="resident").as_dask().name == lazy.name


def test_a_task_of_dask_carries_no_rows(path: Path) -> None:
    from distributed.protocol import serialize

    lazy = open_features(path, "tokens").as_dask()
    for task in dict(lazy.__dask_graph__()).values():
        _, frames = serialize(task)
        assert sum(map(len, frames)) < 3000
        assert not any(np.zeros((3, 2), np.float32).tobytes() in bytes(frame) for frame in frames)


def test_dask_processes_read_by_themselves(sample: Any, path: Path) -> None:
    lazy = open_features(path, "tokens").as_dask()
    found = lazy.compute(scheduler="processes", num_workers=1)
    np.testing.assert_array_equal(found, np.delete(sample.values("tokens"), FAILED, axis=0))


def test_a_damaged_chunk_is_told_by_dask(sample: Any, full: Path) -> None:
    lazy = open_features(full, "tokens", strategy="mapped").as_dask()
    chunk = sorted((full / "tokens").glob("c.2.*"))[0]
    chunk.write_bytes(b"x" + chunk.read_bytes()[1:])
    with pytest.raises(CorruptCacheError, match="rows 16 to 23"):
        lazy.compute(scheduler="sync")


EPOCH = """
import re, sys
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from vlpipe.cache_store.reader import open_features

def anonymous(peak=[0]):
    text = Path("/proc/self/status").read_text()
    return int(re.search(r"RssAnon:\\s+(\\d+)", text).group(1)) / 1024

strategy, budget, window = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
open_features(sys.argv[1], strategy="mapped").batches(8)  # what the libraries take
before = most = anonymous()
features = open_features(sys.argv[1], strategy=strategy, memory_budget=budget)
rows = 0
for epoch in range(2):
    for batch in features.batches(1024, shuffle=True, epoch=epoch, window=window):
        rows += len(batch.rows)
        most = max(most, anonymous())
    for block in features.blocks():
        most = max(most, anonymous())
print(features.strategy, rows, most - before)
"""


@pytest.fixture(scope="module")
def large(sample: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """320 MiB: 163,840 rows in 20 blocks of 16 MiB."""
    store: Path = tmp_path_factory.mktemp("large") / "a.zarr"
    rows, block = 163_840, 8192
    writer = sample.open_writer(store, {"x": ArraySpec((1024,))}, rows=rows, block_rows=block)
    values = np.random.default_rng(0).integers(0, 99, (block, 1024)).astype(np.float16)
    for number in writer.missing():
        with writer.claim(number):
            writer.write(number, {"x": values}, np.ones(block, np.uint8), np.zeros((block, 16), np.uint8))
    return store


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="anonymous memory is told by Linux only")
@pytest.mark.parametrize(
    ("strategy", "budget", "window"),
    [("auto", 64, 1 << 20), ("blocks", 64, 1 << 20), ("blocks", 64, 16_384), ("blocks", 128, 40_000)],
)
def test_anonymous_memory_stays_within_the_budget(large: Path, strategy: str, budget: int, window: int) -> None:
    """A set of several budgets; the budget counts in MiB, and 64 MiB are left for the rest."""
    command = [sys.executable, "-c", EPOCH, str(large), strategy, str(budget << 20), str(window)]
    name, rows, most = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert (name, int(rows)) == ("mapped" if strategy == "auto" else strategy, 2 * 163_840)
    assert float(most) < budget + 64


def test_workers_that_stay_do_not_repeat_an_epoch(features: FeatureSet) -> None:
    """They keep their copy of the data set, which `set_epoch` does not reach."""

    def staying(dataset: FeatureDataset) -> Any:
        return DataLoader(
            dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn", persistent_workers=True
        )

    dataset = FeatureDataset(features, 4, shuffle=True)
    batches = staying(dataset)
    assert len(collected(batches)) == 9
    dataset.set_epoch(1)
    with pytest.raises(UsageError, match="persistent_workers=False"):
        collected(batches)
    in_order = staying(FeatureDataset(features, 4))
    assert collected(in_order) == collected(in_order)
