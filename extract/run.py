"""One side of a manifest through one encoder into its store: what is missing is encoded, nothing else."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vlpipe.cache_store.layout import Side, Status
from vlpipe.cache_store.preview import check_room
from vlpipe.cache_store.writer import StoreWriter
from vlpipe.extract.blocks import CONTENT, Lost, Part, Task, sources, tasks
from vlpipe.extract.failures import FailureFile
from vlpipe.extract.job import Job, Target
from vlpipe.extract.replaced import replaced_rows
from vlpipe.extract.rows import Encoded, Source, encode_rows, prepare_rows
from vlpipe.foundation.errors import TooManyFailuresError, VlpipeError
from vlpipe.foundation.progress import progress


class InterruptedRunError(VlpipeError):
    """Stopped by the user; what was committed stays."""

    exit_code = 130


@dataclass(frozen=True)
class Summary:
    """Rows counted: `encoded` in this run, or `copied` from equal content, of which `zero_norm` have no direction.

    The other counts are of the whole store; `already` were there.
    """

    encoder: str
    side: Side
    store: str
    outputs: tuple[str, ...]
    rows: int
    encoded: int
    copied: int
    already: int
    ok: int
    cut: int
    failed: int
    zero_norm: int
    seconds: float
    failures: str | None
    healed: tuple[str, ...] = ()  # a line for each damaged file or chunk that was made anew

    def check(self, allowed: float) -> None:
        """Raise `TooManyFailuresError` when more than this share of the rows failed, or all of them."""
        usable = self.ok + self.cut
        if self.failed and (self.failed > allowed * self.rows or not usable):
            raise TooManyFailuresError(
                f"{self.failed} of {self.rows} {self.side} rows failed, more than --max-failures {allowed:g} "
                f"allows; the other {usable} are kept, reasons are in '{self.failures}'; mend the items and add "
                "--retry-failed"
            )


def extract(job: Job) -> Summary:
    """Encode the blocks of a store that are missing, and rows that are damaged or whose picture was replaced.

    A row that fails is kept as such and listed.

    Raises `StaleCacheError` for a store of something else, `ValueRangeError` for a value that does not fit,
    `CacheWriteError` where the disk cannot hold it, `InterruptedRunError`; all that was committed before stays.
    """
    started = time.monotonic()
    check_source(job)
    asked = job.open()
    writer = asked.writer
    rows = job.manifest.count(job.side)
    lost = writer.lost(thorough=job.check_content)
    todo = tasks(job, asked, _again(job, writer), lost)
    check_room(job.store, writer.growth(block for block, task in todo.items() if task.places is None))
    run = _Run(job, todo, asked)
    try:
        run.all_blocks()
    except KeyboardInterrupt:
        kept = rows - writer.counts().get(Status.ABSENT, 0)
        raise InterruptedRunError(
            f"interrupted: {kept} of {rows} {job.side} rows are kept; the same command goes on from there"
        ) from None
    finally:
        run.failures.keep(partial(_still_failed, writer))
    counts = writer.counts()
    _check_complete(writer, counts.get(Status.ABSENT, 0))
    return Summary(
        encoder=job.name,
        side=job.side,
        store=str(job.store),
        outputs=tuple(asked.work.outputs),
        rows=rows,
        encoded=run.encoded,
        copied=run.copied,
        already=rows - run.encoded - run.copied,
        ok=counts.get(Status.OK, 0),
        cut=counts.get(Status.CUT, 0),
        failed=counts.get(Status.FAILED, 0),
        zero_norm=run.zero_norm,
        seconds=round(time.monotonic() - started, 3),
        failures=str(run.failures.path) if counts.get(Status.FAILED, 0) else None,
        healed=_healed(writer, lost),
    )


def check_source(job: Job) -> None:
    """Raise `VlpipeError` where there is nothing to encode, or no folder to read it from."""
    if not job.manifest.count(job.side):
        raise VlpipeError(f"manifest '{job.manifest.folder}' has no {job.side}s to encode")
    if job.side == "image" and not job.manifest.image_root.is_dir():
        raise VlpipeError(f"the pictures' folder '{job.manifest.image_root}' of the manifest does not exist")


def _again(job: Job, writer: StoreWriter) -> NDArray[np.int64]:
    """Committed rows whose picture was replaced since, and on request those that failed; ascending."""
    replaced = np.fromiter(_replaced(job, writer), np.int64)
    return np.union1d(replaced, writer.failed()) if job.retry_failed else replaced


def _replaced(job: Job, writer: StoreWriter) -> Iterator[int]:
    """Texts are never replaced: they stand in the manifest, which has a digest."""
    if job.side == "image" and job.check_content:
        batches = job.manifest.batches("image", [CONTENT["image"]], writer.block_rows)
        paths = (path for batch in batches for path in batch.column(0).to_pylist())
        yield from replaced_rows(job.manifest.image_root, paths, writer.content(), job.workers)


def _healed(writer: StoreWriter, lost: Lost) -> tuple[str, ...]:
    spans = ((block, writer.span(block)) for block in sorted(writer.damaged_markers))
    markers = (f"marker {block} (rows {span.start} to {span.stop - 1}) was damaged" for block, span in spans)
    return (*writer.mended, *markers, *(str(loss) for block in sorted(lost) for loss in lost[block]))


def _still_failed(writer: StoreWriter, listed: Collection[str]) -> set[str]:
    """Those of some ids whose row has failed, or whose block is not committed yet."""
    known = pc.index_in(writer.ids, value_set=pa.array(listed, pa.large_string()))
    rows = np.flatnonzero(known.is_valid())
    unsettled = np.isin(rows // writer.block_rows, writer.missing())
    kept = rows[unsettled | np.isin(rows, writer.failed())]
    return set(writer.ids.take(pa.array(kept)).to_pylist())


def _check_complete(writer: StoreWriter, absent: int) -> None:
    if absent:
        raise VlpipeError(
            f"{absent} rows of '{writer.path}' are being encoded by another process; run the same command again "
            "when that one has ended"
        )


class _Run:
    """The pass over a store's blocks, and what it counts."""

    def __init__(self, job: Job, todo: Mapping[int, Task], asked: Target) -> None:
        self.job, self.todo, self.asked = job, todo, asked
        self.failures = FailureFile(job.store)
        self.encoded = 0
        self.copied = 0
        self.zero_norm = 0

    def all_blocks(self) -> None:
        """Encode what is to be done of each block, in order.

        Rows are prepared ahead over the ends of blocks; those of a block that another process holds are dropped.
        """
        parts: deque[Part] = deque()
        read = sources(self.job, self.todo, self.asked.writer.block_rows, parts)
        prepared = prepare_rows(self.asked.work, read)
        with progress(f"{self.job.name} {self.job.side}", self._total()) as advance, closing(prepared):
            for first in prepared:  # asking for it has filled `parts`
                part = parts.popleft()
                results = islice(chain([first], prepared), len(part.sources))
                target = part.task.target
                with target.writer.claim(part.block) as mine:
                    if mine:
                        self._finish(part, encode_rows(target.work, results, len(part.sources), part.find))
                deque(results, maxlen=0)
                advance(len(part.sources))

    def _total(self) -> int:
        span = self.asked.writer.span
        return sum(len(span(block) if t.places is None else t.places) for block, t in self.todo.items())

    def _finish(self, part: Part, found: Encoded) -> None:
        self._list(found, part.sources)
        given = part.rows(found)
        part.task.target.writer.write(part.block, given.rows, given.status, given.content_hash)
        for target in {id(task.target): task.target for task in self.todo.values()}.values():
            target.known.add(part.block)
        self.encoded += len(part.sources) - found.copied
        self.copied += found.copied
        self.zero_norm += found.zero_norm()

    def _list(self, found: Encoded, read: list[Source]) -> None:
        """Before the block is committed: a failed row in a store always has its reason."""
        what = CONTENT[self.job.side]
        records = [
            {"id": read[row].id, what: read[row].content, "reason": reason}
            for row, reason in found.failures.items()
        ]
        self.failures.add(records)
