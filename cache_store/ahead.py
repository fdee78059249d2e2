"""Work that is done ahead of whoever uses its results, by a few threads.

Reading and NumPy's copies leave Python's lock: chunks are read while others are verified, which holds it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

DEPTH = 4  # results at a time: one in use, three on the way


def ahead(work: Callable[[Item], Result], items: Iterable[Item], depth: int = DEPTH) -> Iterator[Result]:
    """The work's results, in order; at most `depth` at a time, with the one in use until the next is asked for.

    Raises what the work does, when its result's turn comes.
    """
    with ThreadPoolExecutor(max(1, depth - 1)) as pool:
        waiting = deque[Future[Result]]()
        try:
            for item in items:
                if len(waiting) == depth:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(work, item))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
