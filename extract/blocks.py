"""Which rows of which blocks are encoded, and for which outputs."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vlpipe.cache_store.layout import Side
from vlpipe.cache_store.values import BlockRows
from vlpipe.extract.job import Job, Target
from vlpipe.extract.rows import Encoded, Source

CONTENT: Mapping[Side, str] = {"image": "path", "text": "text"}
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """What is encoded of one block: all of it, or the rows at `places`, counted from its first."""

    target: Target
    places: Places | None


@dataclass(frozen=True)
class Part:
    """A task whose rows have been read."""

    block: int
    task: Task
    sources: list[Source]

    def rows(self, found: Encoded) -> BlockRows:
        """The whole block; rows that were not encoded keep their values. Raises `CorruptCacheError`."""
        places = self.task.places
        if places is None:
            return BlockRows(found.rows, found.status, found.content_hash)
        old = self.task.target.writer.read_block(self.block)
        rows = {name: np.array(values, np.float32) for name, values in old.rows.items()}
        status, content = old.status.copy(), old.content_hash.copy()
        for name, values in rows.items():
            values[places] = found.rows[name]
        status[places], content[places] = found.status, found.content_hash
        return BlockRows(rows, status, content)


def tasks(job: Job, asked: Target, again: Places) -> dict[int, Task]:
    """By block: what is missing of the asked outputs, and the rows `again`, counted over the whole store.

    A row is usable only when all outputs of its block come from one content, so a block with rows to do again is
    done for every output that it has; where it lacks an asked one, all its rows are.
    """
    found = {block: Task(asked, None) for block in asked.writer.missing()}
    places = _by_block(again, asked.writer.block_rows)
    alike: dict[frozenset[str], list[int]] = defaultdict(list)
    for block in places:
        alike[frozenset(asked.writer.outputs_of(block))].append(block)
    for names, blocks in alike.items():
        target = job.widened(asked, sorted(names))
        lacking = set(target.writer.missing(blocks))
        found |= {block: Task(target, None if block in lacking else places[block]) for block in blocks}
    return found


def _by_block(rows: Places, size: int) -> dict[int, Places]:
    """Ascending rows by block, counted from the block's first."""
    blocks, starts = np.unique(rows // size, return_index=True)
    return dict(zip(blocks.tolist(), np.split(rows % size, starts[1:]), strict=False))


def sources(job: Job, todo: Mapping[int, Task], block_rows: int, parts: deque[Part]) -> Iterator[Source]:
    """The rows to encode, in order; each block is put on `parts` when its first row is asked for."""
    if not todo:
        return
    batches = job.manifest.batches(job.side, [f"{job.side}_id", CONTENT[job.side]], block_rows)
    for block, batch in enumerate(batches):
        if task := todo.get(block):
            rows = batch if task.places is None else batch.take(pa.array(task.places))
            read = list(map(Source, rows.column(0).to_pylist(), rows.column(1).to_pylist()))
            parts.append(Part(block, task, read))
            yield from read
