"""The order of an epoch is a permutation of the usable rows, decided by nothing but what it is given."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlpipe.cache_store.order import EpochOrder, default_window, shuffled


def order_of(usable: Any, chunk_rows: int, **changed: Any) -> np.ndarray:
    given = {"window": 1 << 20, "shuffle": True, "seed": 0, "epoch": 0, **changed}
    order = EpochOrder(np.asarray(usable, np.bool_), chunk_rows, **given)
    return np.concatenate([order.window(number) for number in range(order.windows)])


@settings(max_examples=200, deadline=None)
@given(
    usable=st.lists(st.booleans(), min_size=1, max_size=70),
    chunk_rows=st.sampled_from([1, 2, 8, 64]),
    window=st.integers(1, 80),
    seed=st.integers(0, 2**64 - 1),
)
def test_every_usable_row_comes_once_and_windows_hold_whole_chunks(
    usable: list[bool], chunk_rows: int, window: int, seed: int
) -> None:
    order = EpochOrder(np.array(usable), chunk_rows, window=window, shuffle=True, seed=seed, epoch=0)
    windows = [order.window(number).tolist() for number in range(order.windows)]
    wanted = np.flatnonzero(usable).tolist()
    assert sorted(row for rows in windows for row in rows) == wanted
    assert np.cumsum([0, *map(len, windows)]).tolist() == order.starts
    assert order.rows == len(wanted)
    chunks = [{row // chunk_rows for row in rows} for rows in windows]
    assert sum(map(len, chunks)) == len(set().union(*chunks))
    assert all(len(rows) < len(wanted) / order.windows + chunk_rows for rows in windows)
    plain = EpochOrder(np.array(usable), chunk_rows, window=window, shuffle=False, seed=seed, epoch=0)
    assert [row for number in range(plain.windows) for row in plain.window(number).tolist()] == wanted


def test_seed_and_epoch_decide() -> None:
    usable = np.ones(500, np.bool_)
    numbers = [(0, 0), (0, 1), (1, 0), (2**32, 0), (2**64 - 1, 0), (0, 2**32 - 1)]
    orders = [order_of(usable, 8, seed=seed, epoch=epoch).tolist() for seed, epoch in numbers]
    assert len(set(map(tuple, orders))) == len(numbers)
    assert order_of(usable, 8, seed=1, epoch=7).tolist() == order_of(usable, 8, seed=1, epoch=7).tolist()
    assert order_of(usable, 8, seed=3).tolist() == order_of(usable, 16, seed=3).tolist()  # one window: no chunks
    assert order_of(usable, 8, window=100).tolist() != order_of(usable, 8).tolist()


def test_one_window_is_uniform() -> None:
    """720 orders of six rows, 7,200 draws: each row in each place about 1,200 times, each order about ten."""
    found = Counter(tuple(shuffled(np.arange(6), seed).tolist()) for seed in range(7200))
    places = np.zeros((6, 6))
    for order, count in found.items():
        places[range(6), order] += count
    assert abs(places - 1200).max() < 5 * np.sqrt(1200 * 5 / 6)
    counts = np.array([*found.values()] + [0] * (720 - len(found)))
    assert abs(((counts - 10) ** 2 / 10).sum() - 719) < 5 * np.sqrt(2 * 719)  # chi squared, 719 degrees


def test_several_windows_mix_the_chunks_of_each() -> None:
    """64 chunks in windows of four: neighbours in the order come from four chunks, which are no neighbours."""
    order = EpochOrder(np.ones(1024, np.bool_), 16, window=64, shuffle=True, seed=5, epoch=0)
    assert order.windows == 16
    chunks = [np.unique(order.window(number) // 16) for number in range(16)]
    assert all(len(found) == 4 for found in chunks)
    assert sum(int((np.diff(found) == 1).sum()) for found in chunks) < 10


def test_the_order_is_that_of_sorted_random_bits() -> None:
    """By a plain loop, and one order to the letter: it must outlast versions of NumPy."""
    draw = np.random.PCG64(np.random.SeedSequence(9, spawn_key=(4, 2)))
    keys = [(int(draw.random_raw()) >> 4, place) for place in range(10)]
    assert shuffled(np.arange(10), 9, 4, 2).tolist() == [place for _, place in sorted(keys)]
    assert shuffled(np.arange(8), 0, 0).tolist() == GOLDEN


GOLDEN = [6, 3, 1, 4, 5, 2, 7, 0]


@pytest.mark.parametrize(("row_bytes", "rows"), [(1, 1 << 20), (1024, 1 << 20), (1536, 699050), (3 << 30, 1)])
def test_default_window(row_bytes: int, rows: int) -> None:
    assert default_window(row_bytes) == rows
