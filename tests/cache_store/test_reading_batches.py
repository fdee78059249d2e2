"""Batches: the same rows for every strategy, budget, rank and worker, from any point of an epoch on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vlpipe.cache_store.batches import Batches
from vlpipe.cache_store.errors import CorruptCacheError, StaleCacheError
from vlpipe.cache_store.layout import ArraySpec
from vlpipe.cache_store.reader import FeatureSet, open_features
from vlpipe.foundation.errors import UsageError

ROWS = 101
FAILED = [0, 9, *range(40, 48), 77]
USABLE = [row for row in range(ROWS) if row not in FAILED]
OUTPUTS = {"pooled": ArraySpec((5,)), "tokens": ArraySpec((3, 2), "float32"), "norm": ArraySpec(())}


@pytest.fixture(scope="module")
def path(sample: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """101 rows in blocks of 8; 11 failed, one block of them whole."""
    store: Path = tmp_path_factory.mktemp("batches") / "a.zarr"
    status = sample.statuses(ROWS, failed=FAILED, cut=[20])
    sample.fill(sample.open_writer(store, OUTPUTS, rows=ROWS), rows=ROWS, status=status)
    return store


def ways(path: Path, name: str) -> Iterator[FeatureSet]:
    """Every strategy, the last with ever smaller budgets."""
    for strategy in ("resident", "mapped", "blocks"):
        yield open_features(path, name, strategy=strategy)
    chunk = open_features(path, name)._array.chunk_bytes
    for chunks in (2, 3, 9):
        yield open_features(path, name, strategy="blocks", memory_budget=chunks * chunk)


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def collected(batches: Batches) -> list[tuple[list[int], bytes]]:
    return [(positions.tolist(), rows.tobytes()) for positions, rows in batches]


@pytest.mark.parametrize("name", list(OUTPUTS))
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("reuse", [True, False])
def test_all_ways_give_the_same_batches(sample: Any, path: Path, name: str, window: Any, reuse: bool) -> None:
    stored = sample.values(name, ROWS).astype(OUTPUTS[name].dtype)
    settings = {"shuffle": True, "seed": 3, "epoch": 1, "window": window, "reuse": reuse}
    first = None
    for features in ways(path, name):
        found = collected(features.batches(7, **settings))
        assert [len(positions) for positions, _ in found] == [7] * 12 + [6]
        for positions, rows in found:
            assert rows == stored[positions].tobytes()
        assert sorted(flat(positions for positions, _ in found)) == USABLE
        first = first or found
        assert found == first


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.integers(1, 120), world=st.integers(1, 5), workers=st.integers(1, 4), window=st.integers(1, 120),
    drop=st.booleans(), shuffle=st.booleans(), which=st.integers(0, 5),
)  # fmt: skip
def test_ranks_and_workers_share_one_order(
    path: Path, size: int, world: int, workers: int, window: int, drop: bool, shuffle: bool, which: int
) -> None:
    features = list(ways(path, "pooled"))[which]
    shared = {"shuffle": shuffle, "seed": 1, "window": window}
    order = [row for batch in features.batches(1000, **shared) for row in batch.positions.tolist()]
    assert shuffle or order == USABLE
    for rank in range(world):
        asked = {**shared, "rank": rank, "world": world, "drop_last": drop}
        mine = order[rank::world]
        wanted = [mine[start : start + size] for start in range(0, len(mine), size)]
        if drop:
            wanted = wanted[: len(order) // (world * size)]
        found = [batch.positions.tolist() for batch in features.batches(size, **asked)]
        assert found == wanted
        assert len(features.batches(size, **asked)) == len(wanted)
        for worker in range(workers):
            part = features.batches(size, **asked, worker=worker, workers=workers, reuse=True)
            assert [batch.positions.tolist() for batch in part] == wanted[worker::workers]


@pytest.mark.parametrize("window", [None, 20])
def test_an_epoch_resumes_at_every_batch(path: Path, window: int | None) -> None:
    asked = {"shuffle": True, "seed": 5, "epoch": 2, "window": window, "rank": 1, "world": 2}
    for features in ways(path, "pooled"):
        whole = collected(features.batches(4, **asked))
        going = features.batches(4, **asked, reuse=True)
        for done in range(len(whole) + 1):
            state = json.loads(json.dumps(going.state_dict()))
            resumed = features.batches(4, **asked)
            resumed.load_state_dict(state)
            assert collected(resumed) == whole[done:]
            next(going, None)


def test_a_state_of_other_batches_names_every_difference(sample: Any, path: Path, store: Path) -> None:
    features = open_features(path, "pooled")
    state = features.batches(4, shuffle=True).state_dict()
    with pytest.raises(StaleCacheError, match="seed is 1, in the state 0; epoch is 2, in the state 0; load it"):
        features.batches(4, shuffle=True, seed=1, epoch=2).load_state_dict(state)
    for change in ({"batch_size": 5}, {"rank": 1, "world": 2}, {"window": 9}, {"drop_last": True}):
        asked = {"batch_size": 4, "shuffle": True, **change}
        with pytest.raises(StaleCacheError, match=f"{next(iter(change))} is"):
            features.batches(**asked).load_state_dict(state)
    with pytest.raises(StaleCacheError, match="output is 'norm'"):
        open_features(path, "norm").batches(4, shuffle=True).load_state_dict(state)
    with pytest.raises(StaleCacheError, match="no batch number"):
        features.batches(4, shuffle=True).load_state_dict({**state, "batch": None})
    sample.fill(sample.open_writer(store, OUTPUTS, rows=ROWS), rows=ROWS)
    with pytest.raises(StaleCacheError, match=r"content is .*; usable is"):
        open_features(store, "pooled").batches(4, shuffle=True).load_state_dict(state)


def test_without_reuse_batches_stay_with_it_they_are_written_over(path: Path) -> None:
    features = open_features(path, "pooled")
    kept = list(features.batches(7, shuffle=True))
    assert collected(iter(kept)) == collected(features.batches(7, shuffle=True))  # type: ignore[arg-type]
    reused = list(features.batches(7, shuffle=True, reuse=True))
    assert all(np.shares_memory(batch.rows, reused[0].rows) for batch in reused)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"batch_size": 0}, "batch_size 0: expected a whole number from 1"),
        ({"batch_size": 2.0}, "batch_size 2.0"),
        ({"seed": -1}, "seed -1: expected a whole number from 0"),
        ({"epoch": True}, "epoch True"),
        ({"world": 0}, "world 0"),
        ({"rank": 2, "world": 2}, "rank 2: expected a whole number from 0 to 1"),
        ({"window": 0}, "window 0"),
        ({"worker": 1}, "worker 1: expected a whole number from 0 to 0"),
        ({"workers": 0}, "workers 0"),
    ],
)
def test_impossible_settings_are_refused(path: Path, settings: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        open_features(path, "pooled").batches(**{"batch_size": 4, **settings})


def test_numpys_whole_numbers_are_numbers(path: Path) -> None:
    features = open_features(path, "pooled")
    given = {"batch_size": np.int32(4), "shuffle": True, "seed": np.uint64(5), "epoch": np.int64(2)}
    plain = {name: value if name == "shuffle" else int(value) for name, value in given.items()}
    ours = features.batches(**given)
    assert json.loads(json.dumps(ours.state_dict())) == features.batches(**plain).state_dict()
    assert collected(ours) == collected(features.batches(**plain))
    with pytest.raises(UsageError, match="seed"):
        features.batches(4, seed=np.float64(1))  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "failed"), [(1, []), (1, [0]), (20, range(20)), (9, range(8))])
def test_sets_of_few_rows_or_none(sample: Any, store: Path, rows: int, failed: Any) -> None:
    usable = [row for row in range(rows) if row not in failed]
    status = sample.statuses(rows, failed=failed)
    sample.fill(sample.open_writer(store, OUTPUTS, rows=rows), rows=rows, status=status)
    for features in ways(store, "tokens"):
        assert features.usable_positions.tolist() == usable
        assert features.as_numpy().shape == (len(usable), 3, 2)
        assert features.as_dask().compute().shape == (len(usable), 3, 2)
        assert flat(batch.positions.tolist() for batch in features.blocks()) == usable
        batches = features.batches(4, shuffle=True)
        assert len(batches) == -(-len(usable) // 4)
        assert sorted(flat(batch.positions.tolist() for batch in batches)) == usable
        assert list(features.batches(4, rank=2, world=3)) == []
        assert list(features.batches(4, drop_last=True, world=3)) == []
        batches.load_state_dict(batches.state_dict())
        assert list(batches) == []


def test_nothing_committed_yet(sample: Any, store: Path) -> None:
    sample.open_writer(store)
    for strategy in ("resident", "mapped", "blocks"):
        features = open_features(store, "tokens", strategy=strategy)
        assert (list(features.batches(3, shuffle=True)), list(features.blocks())) == ([], [])
        assert features.as_numpy().shape == features.as_dask().shape == (0, 3, 2)


def test_blocks_are_the_usable_rows_in_row_order(sample: Any, path: Path) -> None:
    stored = sample.values("tokens", ROWS)
    for features in ways(path, "tokens"):
        found = [(positions.tolist(), rows.copy()) for positions, rows in features.blocks()]
        assert flat(positions for positions, _ in found) == USABLE
        assert len(found) == 12  # of 13 chunks one has no usable row
        for positions, rows in found:
            np.testing.assert_array_equal(rows, stored[positions], strict=True)
        np.testing.assert_array_equal(features.as_numpy(), stored[USABLE], strict=True)


def test_blocks_cannot_be_written_through(path: Path) -> None:
    for features in ways(path, "tokens"):
        whole = next(rows for positions, rows in features.blocks() if len(positions) == 8)
        with pytest.raises(ValueError, match="read-only"):
            whole[:] = 0


def test_a_budget_below_two_chunks_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="memory_budget of 100 bytes: expected at least two chunks, 168 bytes"):
        open_features(path, "pooled", strategy="blocks", memory_budget=100)


def test_a_chunk_damaged_on_the_way_is_told_again_and_again(sample: Any, full: Path) -> None:
    for strategy in ("mapped", "blocks"):
        batches = open_features(full, "pooled", strategy=strategy).batches(8)
        chunk = sorted((full / "pooled").glob("c.3.*"))[0]
        data = chunk.read_bytes()
        chunk.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
        for _ in range(2):
            with pytest.raises(CorruptCacheError, match="rows 24 to 31 are lost"):
                list(batches)
        chunk.write_bytes(data)
        assert sum(len(batch.positions) for batch in batches) > 0


@pytest.mark.parametrize("strategy", ["resident", "mapped", "blocks"])
def test_a_reader_while_a_store_is_filled(sample: Any, store: Path, strategy: Any) -> None:
    """Opens and reads whole epochs, again and again, until all rows are there: no error, committed rows only."""
    writer = sample.open_writer(store, OUTPUTS, rows=ROWS)
    stored = sample.values("pooled", ROWS).astype(np.float16)
    filling = Thread(target=sample.fill, args=(writer,), kwargs={"rows": ROWS, "pause": 0.005})
    filling.start()
    seen = [0]
    try:
        while seen[-1] < ROWS and len(seen) < 10_000:
            features = open_features(store, "pooled", strategy=strategy)
            found = list(features.batches(8, shuffle=True))
            for positions, rows in [*found, *((where, rows.copy()) for where, rows in features.blocks())]:
                np.testing.assert_array_equal(rows, stored[positions])
            seen.append(sum(len(batch.rows) for batch in found))
            assert seen[-1] == len(features.usable_positions)
    finally:
        filling.join()
    assert seen == sorted(seen)
    assert seen[-1] == ROWS
    assert len(set(seen)) > 2


def test_a_block_written_again_during_an_epoch_is_told(sample: Any, full: Path) -> None:
    features = open_features(full, "pooled", strategy="blocks")
    batches = features.batches(4)
    sample.fill(sample.open_writer(full), blocks=[1])  # row 9 no longer fails
    with pytest.raises(StaleCacheError, match="written again since it was opened"):
        list(batches)
