from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from vlpipe.extract.prefetch import Failure, prefetch
from vlpipe.foundation.errors import VlpipeError


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_results_come_in_order(workers: int) -> None:
    def work(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return number * number

    assert list(prefetch(work, range(50), workers, 8)) == [n * n for n in range(50)]


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_a_bad_item_is_one_failure(workers: int) -> None:
    def work(number: int) -> int:
        if number == 3:
            raise VlpipeError("three is\nnot a picture")
        if number == 5:
            raise ValueError("odd")
        return number

    found = list(prefetch(work, range(7), workers, 4))
    assert found == [0, 1, 2, Failure("three is not a picture"), 4, Failure("ValueError: odd"), 6]


def test_all_bad_ends() -> None:
    def work(number: int) -> int:
        raise OSError(number)

    assert all(isinstance(result, Failure) for result in prefetch(work, range(100), 2, 4))


def test_no_items() -> None:
    assert list(prefetch(abs, [], 2, 4)) == []


def test_no_more_than_ahead_is_begun() -> None:
    begun = []

    def items() -> Iterator[int]:
        for number in range(1000):
            begun.append(number)
            yield number

    stream = prefetch(lambda number: number, items(), 4, 8)
    for taken in range(20):
        assert next(stream) == taken
        assert len(begun) <= taken + 1 + 8
    stream.close()  # type: ignore[attr-defined]


def test_stopping_early_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    stream = prefetch(lambda number: time.sleep(0.01), range(10_000), 4, 64)
    next(stream)
    started = time.monotonic()
    stream.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 1
    assert threading.active_count() == before
