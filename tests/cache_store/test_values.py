"""Numbers at the edges of what a dtype holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlpipe.cache_store import values
from vlpipe.cache_store.errors import ValueRangeError
from vlpipe.cache_store.layout import ArraySpec
from vlpipe.cache_store.reader import open_features

POOLED = {"pooled": ArraySpec((5,))}


def test_each_of_all_float16_numbers_is_judged_as_numpy_does() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    found = [values._all_finite(every[i : i + 1]) for i in range(len(every))]
    assert found == np.isfinite(every).tolist()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, -np.nan])
def test_one_bad_number_among_many_is_seen(dtype: str, bad: float) -> None:
    rows = np.random.default_rng(0).standard_normal((70, 6000)).astype(dtype)  # more than one piece
    rows[0, :4] = [np.finfo(dtype).max, np.finfo(dtype).min, np.finfo(dtype).smallest_subnormal, -0.0]
    assert rows.size > values.CACHED
    assert values._all_finite(rows)
    for place in ((0, 0), (69, 5999), (43, 4143)):
        changed = rows.copy()
        changed[place] = bad
        assert not values._all_finite(changed)
    for one_sign in (np.abs(rows), -np.abs(rows)):
        assert values._all_finite(one_sign)


def store_row(sample: Any, store: Path, value: float, output: ArraySpec, failed: bool = False) -> np.ndarray:
    """Row 2 of block 0 with a value, written and read back."""
    writer = sample.open_writer(store, {"pooled": output})
    rows = sample.values("pooled")[:8]
    rows[2, 3] = value
    status = sample.statuses(failed=[2] if failed else [])[:8]
    with writer.claim(0):
        writer.write(0, {"pooled": rows}, status, sample.hashes()[:8])
    found = open_features(store, "pooled")
    return np.asarray(found._array.read_rows(range(8), [found._committed.chunks[0]])[2])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (65504, 65504),
        (65505, 65504),
        (65519.99, 65504),
        (-65519, -65504),
        (2**-24, 2**-24),  # the smallest subnormal
        (-(2**-25), -0.0),  # rounds to even
        (1e-30, 0),
    ],
)
def test_what_float16_keeps(sample: Any, store: Path, given: float, kept: float) -> None:
    found = store_row(sample, store, given, POOLED["pooled"])[3]
    assert found.tobytes() == np.float16(kept).tobytes()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (65520, r"value 65520, float16 holds at most 65504; nothing of its block was kept: .*--dtype float32"),
        (-1e30, r"value -1e\+30, float16 holds at most 65504"),
        (-np.inf, "value -inf, expected a finite number"),
        (np.nan, "value nan, expected a finite number"),
    ],
)
def test_what_float16_refuses(sample: Any, store: Path, given: float, says: str) -> None:
    with pytest.raises(ValueRangeError, match=rf"output 'pooled' of row 'set a/é 002.JPG' has the {says}"):
        store_row(sample, store, given, POOLED["pooled"])


def test_float32_keeps_what_float16_refuses(sample: Any, store: Path) -> None:
    assert store_row(sample, store, 1e30, ArraySpec((5,), "float32"))[3] == np.float32(1e30)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_failed_row_is_zero_whatever_it_holds(sample: Any, store: Path, value: float) -> None:
    assert not store_row(sample, store, value, POOLED["pooled"], failed=True).any()


def test_given_rows_are_neither_changed_nor_need_to_be_writable(sample: Any, store: Path) -> None:
    rows = sample.values("pooled")[:8].astype(np.float16)
    kept = rows.copy()
    rows.flags.writeable = False
    for failed in ([], [1]):
        writer = sample.open_writer(store, POOLED)
        with writer.claim(0):
            writer.write(0, {"pooled": rows}, sample.statuses(failed=failed)[:8], sample.hashes()[:8])
    np.testing.assert_array_equal(rows, kept)
