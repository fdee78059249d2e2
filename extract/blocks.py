"""Which rows of which blocks are encoded, and for which outputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.group import BOOKS
from vlpipe.cache_store.known import EVERYWHERE
from vlpipe.cache_store.layout import Side
from vlpipe.cache_store.losses import Loss
from vlpipe.cache_store.values import BlockRows
from vlpipe.extract.job import Job, Target
from vlpipe.extract.rows import Encoded, Find

CONTENT: Mapping[Side, str] = {"image": "path", "text": "text"}
Places = NDArray[np.int64]
Lost = Mapping[int, Sequence[Loss]]  # by block


@dataclass(frozen=True)
class Task:
    """What is encoded of one block: all of it, or the rows at `places`, counted from its first."""

    target: Target
    places: Places | None

    def count(self, block: int) -> int:
        """How many rows that are."""
        return len(self.target.writer.span(block) if self.places is None else self.places)

    def find(self, block: int) -> Find:
        """Where the block's content may be known.

        A whole block takes nothing of its store from itself on, so that it comes out the same whether it is
        encoded in its turn or done again later.
        """
        before = self.target.writer.span(block).start if self.places is None else EVERYWHERE
        return partial(self.target.known.find, before=before)

    def rows(self, block: int, found: Encoded) -> BlockRows:
        """The whole block; rows that were not encoded keep their values. Raises `CorruptCacheError`."""
        if self.places is None:
            return BlockRows(found.rows, found.status, found.content_hash)
        old = self.target.writer.read_block(block, self.places)
        rows = {name: np.array(values, np.float32) for name, values in old.rows.items()}
        status, content = old.status.copy(), old.content_hash.copy()
        for name, values in rows.items():
            values[self.places] = found.rows[name]
        status[self.places], content[self.places] = found.status, found.content_hash
        return BlockRows(rows, status, content)


def tasks(job: Job, asked: Target, again: Places, lost: Lost) -> dict[int, Task]:
    """By block: what is missing of the asked outputs, what they have `lost`, and the rows `again` of the store.

    A row is usable only when all outputs of its block come from one content, so a block with rows to do again is
    done for every output that it has; where it lacks an asked one, or has lost its status or content hashes, all
    its rows are. Rows that are lost, and no more, are done for the outputs that have lost them.
    """
    found = {block: Task(asked, None) for block in asked.writer.missing() if asked.lacks(block)}
    places = _by_block(again, asked.writer.block_rows)
    alike: dict[frozenset[str], list[int]] = defaultdict(list)
    bookless = {block for block, losses in lost.items() if any(loss.output in BOOKS for loss in losses)}
    for block in places.keys() | bookless:
        alike[frozenset(asked.work.outputs.keys() | asked.writer.outputs_of(block))].append(block)
    for block in lost.keys() - places.keys() - bookless - found.keys():
        alike[frozenset(loss.output for loss in lost[block])].append(block)
    for names, blocks in alike.items():
        target = job.narrowed(asked, sorted(names))
        gone = target.writer.lost(places.keys() & {*blocks}, thorough=job.check_content)
        for block in blocks:
            losses = [*lost.get(block, ()), *gone.get(block, ())]
            found[block] = Task(target, _places(target, block, places.get(block), losses))
    return found


def _places(target: Target, block: int, again: Places | None, losses: Iterable[Loss]) -> Places | None:
    """The rows of a block that are done, counted from its first; None for all."""
    if target.lacks(block) or any(loss.output in BOOKS for loss in losses):
        return None
    start = target.writer.span(block).start
    gone = (np.arange(loss.rows.start, loss.rows.stop) - start for loss in losses)
    return np.unique(np.concatenate([np.empty(0, np.int64) if again is None else again, *gone]))


def _by_block(rows: Places, size: int) -> dict[int, Places]:
    """Ascending rows by block, counted from the block's first."""
    blocks, starts = np.unique(rows // size, return_index=True)
    return dict(zip(blocks.tolist(), np.split(rows % size, starts[1:]), strict=False))
