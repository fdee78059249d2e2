"""One pass over a manifest: each row is read and decoded once, and goes into every store that misses it.

A lane is one encoder with its store. Lanes may have blocks of different sizes, and miss different ones of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.behind import WriteBehind
from vlpipe.extract.blocks import CONTENT, Task
from vlpipe.extract.failures import FailureFile
from vlpipe.extract.job import Job, Target
from vlpipe.extract.memory import keep_memory
from vlpipe.extract.prefetch import Failure
from vlpipe.extract.preparing import Source, prepare_rows
from vlpipe.extract.rows import BlockEncoder, Encoded, Result
from vlpipe.foundation.progress import Advance


class Lane:
    """The blocks of one store that are `todo`, and what of them has been done."""

    def __init__(self, job: Job, asked: Target, todo: Mapping[int, Task]) -> None:
        self.job, self.asked, self.todo = job, asked, dict(todo)
        self.failures = FailureFile(job.store)
        self.encoded = 0
        self.copied = 0
        self.zero_norm = 0
        self.claim = ExitStack()  # of the block in work
        self._part: Part | None = None  # the one that was read last

    def rows(self) -> int:
        """How many are to be done."""
        return sum(task.count(block) for block, task in self.todo.items())

    def part_at(self, start: int, behind: WriteBehind) -> Part | None:
        """What is to be done of the block that a row is in."""
        block = start // self.asked.writer.block_rows
        if block not in self.todo:
            return None
        if self._part is None or self._part.block != block:
            self._part = Part(self, block, behind)
        return self._part

    def count(self, encoded: int, copied: int, zero_norm: int) -> None:
        """So many rows more are done."""
        self.encoded += encoded
        self.copied += copied
        self.zero_norm += zero_norm

    def targets(self) -> list[Target]:
        """Which sets of outputs are written."""
        return list({id(task.target): task.target for task in self.todo.values()}.values())


class Part:
    """The rows of one block on their way into one store, in order."""

    def __init__(self, lane: Lane, block: int, behind: WriteBehind) -> None:
        self.block = block
        self.find = lane.todo[block].find(block)
        self._lane, self._behind = lane, behind
        self._task = lane.todo[block]
        self._count = self._task.count(block)
        self._encoder: BlockEncoder | None = None
        self._taken = 0
        self._failed: list[dict[str, str]] = []

    def wanted(self, start: int, count: int) -> NDArray[np.bool_]:
        """Which of some rows of the block belong to it, (count,)."""
        places = np.arange(start, start + count) - self._task.target.writer.span(self.block).start
        return np.full(count, True) if self._task.places is None else np.isin(places, self._task.places)

    def take(self, source: Source[Part], result: Result) -> None:
        """The next row. Those of a block that another process holds are dropped. Raises what encoding does."""
        if not self._taken:
            self._begin()
        self._taken += 1
        if self._encoder:
            if isinstance(result, Failure):
                what = CONTENT[self._lane.job.side]
                self._failed.append({"id": source.id, what: source.content, "reason": result.reason})
            self._encoder.take(result)
        if self._taken == self._count:
            self._finish()

    def _begin(self) -> None:
        target = self._task.target
        if self._lane.claim.enter_context(target.writer.claim(self.block)):
            self._encoder = BlockEncoder(target.work, self._count, self.find)

    def _finish(self) -> None:
        claim = self._lane.claim.pop_all()
        if self._encoder is None:
            claim.close()
            return
        with ExitStack() as left:
            left.push(claim)
            found = self._encoder.finish()
            self._lane.failures.add(self._failed)  # first: a failed row in a store always has its reason
            self._write(found, left)
        self._lane.count(self._count - found.copied, found.copied, found.zero_norm())

    def _write(self, found: Encoded, claim: ExitStack) -> None:
        target = self._task.target
        given = target.writer.check(self.block, self._task.rows(self.block, found))
        target.known.add(self.block, given)
        self._behind.write(target.writer, self.block, given, claim.pop_all(), target.known.forget)
        others = [other for other in self._lane.targets() if other is not target]
        if others:
            self._behind.wait()
        for other in others:
            other.known.add(self.block)


def run_pass(lanes: Sequence[Lane], advance: Advance) -> None:
    """Do all that is to be done in some lanes of one side of one manifest, in order.

    Rows are prepared ahead over the ends of blocks, and blocks written behind. Raises what encoding and writing
    do; blocks that are complete are committed then, too.
    """
    lanes = [lane for lane in lanes if lane.todo]
    if not lanes:
        return
    keep_memory()
    with ExitStack() as stack:
        behind = stack.enter_context(WriteBehind())
        for lane in lanes:
            stack.callback(lane.claim.close)
        prepared = prepare_rows([lane.asked.work for lane in lanes], _sources(lanes, behind))
        for ready in stack.enter_context(closing(prepared)):
            for part, result in zip(ready.source.takers, ready.results, strict=True):
                if part is not None and result is not None:
                    part.take(ready.source, result)
                    advance(1)


def _sources(lanes: Sequence[Lane], behind: WriteBehind) -> Iterator[Source[Part]]:
    """The rows that any lane wants, in order."""
    job, step = lanes[0].job, min(lane.asked.writer.block_rows for lane in lanes)
    first = min(min(lane.todo) * lane.asked.writer.block_rows for lane in lanes)
    last = max((max(lane.todo) + 1) * lane.asked.writer.block_rows for lane in lanes)
    columns = [f"{job.side}_id", CONTENT[job.side]]
    # Sizes of blocks are powers of two: each of these batches lies in one block of every lane.
    batches = job.manifest.batches(job.side, columns, step, first)
    for start, batch in zip(range(first, last, step), batches, strict=False):
        parts = [lane.part_at(start, behind) for lane in lanes]
        wanted = [part.wanted(start, len(batch)) if part else np.zeros(len(batch), bool) for part in parts]
        rows = np.flatnonzero(np.any(wanted, axis=0))
        ids, contents = (column.take(rows).to_pylist() for column in batch)
        for row, id, content in zip(rows, ids, contents, strict=True):
            takers = (part if mask[row] else None for part, mask in zip(parts, wanted, strict=True))
            yield Source(id, content, tuple(takers))
