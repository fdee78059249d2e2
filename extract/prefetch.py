"""Bounded prefetch: items are worked on in threads and come out in the order they went in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from vlpipe.foundation.errors import VlpipeError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Failure:
    """Why one item could not be prepared, in one line."""

    reason: str


def prefetch(
    work: Callable[[T], R], items: Iterable[T], workers: int, ahead: int
) -> Generator[R | Failure, None, None]:
    """The work's results in order, at most `ahead` of them begun and not yet taken.

    An item whose work raises gives a `Failure`. When the consumer stops early nothing more is begun, and
    closing the iterator waits for the items in hand only. With 0 workers the work is done where it is asked for.
    """

    def guarded(item: T) -> R | Failure:
        try:
            return work(item)
        except Exception as error:
            return Failure(_reason(error))

    if not workers:
        yield from map(guarded, items)
        return
    source = iter(items)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="prefetch")
    try:
        waiting: deque[Future[R | Failure]] = deque(pool.submit(guarded, item) for item in islice(source, ahead))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(guarded, item) for item in islice(source, 1))
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, VlpipeError) else f"{type(error).__name__}: {text}"
