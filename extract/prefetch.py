"""Bounded prefetch: items are worked on in threads and come out in the order they went in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

from vlpipe.foundation.errors import VlpipeError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Failure:
    """Why one item could not be prepared, in one line."""

    reason: str


class BrokenWorkersError(VlpipeError):
    """Those that prepare items cannot work at all: nothing of the items' own, so it ends the run."""


def attempt(work: Callable[[T], R], item: T) -> R | Failure:
    """The work's result, or why it raised; raises `BrokenWorkersError` only."""
    try:
        return work(item)
    except BrokenWorkersError:
        raise
    except Exception as error:
        return Failure(_reason(error))


def nothing() -> None:
    """A `stop` with nothing to stop."""


def prefetch(
    work: Callable[[T], R], items: Iterable[T], workers: int, ahead: int, stop: Callable[[], None] = nothing
) -> Generator[R | Failure, None, None]:
    """The work's results in order, at most `ahead` of them begun and not yet taken.

    An item whose work raises gives a `Failure`. When the consumer stops early nothing more is begun, and
    closing the iterator calls `stop`, which may end the items in hand, and waits for these. With 0 workers the
    work is done where it is asked for.
    """
    tried = partial(attempt, work)
    if not workers:
        yield from map(tried, items)
        return
    source = iter(items)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="prefetch")
    try:
        waiting: deque[Future[R | Failure]] = deque(pool.submit(tried, item) for item in islice(source, ahead))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(tried, item) for item in islice(source, 1))
            yield result
    finally:
        stop()
        pool.shutdown(wait=True, cancel_futures=True)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, VlpipeError) else f"{type(error).__name__}: {text}"
