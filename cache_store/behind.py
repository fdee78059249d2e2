"""Blocks are written while the next ones are made: a commit waits for the disk twice, most of the time idle."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType

from vlpipe.cache_store.values import BlockRows
from vlpipe.cache_store.writer import StoreWriter

DEPTH = 2  # blocks that are written at a time: one is copied while the other waits for the disk


def nothing(block: int) -> None:
    """A `done` that does not care."""


class WriteBehind:
    """Writes checked blocks, of any stores, in `DEPTH` threads, each block in one; no more of them are kept.

    An error is raised when a later block is given, or at the end: each block is either committed or as it was.
    Leaving it waits for what has been given, after an interruption, too.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(DEPTH, thread_name_prefix="write")
        self._given: deque[Future[None]] = deque()

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True)
        if error is None:
            self.wait()

    def wait(self) -> None:
        """Until all that was given is committed; raises what writing raised first."""
        self._leave(0)

    def write(
        self,
        writer: StoreWriter,
        block: int,
        rows: BlockRows,
        claim: AbstractContextManager[object],
        done: Callable[[int], None] = nothing,
    ) -> None:
        """Commit a block that `writer.check` gave, call `done` with it, and leave its `claim`, entered already.

        The rows must not be changed any more. Waits until at most `DEPTH` blocks are on the way; raises what
        writing an earlier one raised, and then leaves this one's claim too.
        """

        def commit() -> None:
            with claim:
                writer.commit(block, rows)
                done(block)

        try:
            self._leave(DEPTH - 1)
        except BaseException:
            claim.__exit__(None, None, None)
            raise
        self._given.append(self._pool.submit(commit))

    def _leave(self, count: int) -> None:
        while len(self._given) > count:
            self._given.popleft().result()
