"""One side of a manifest through encoders into their stores: what is missing is encoded, nothing else."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vlpipe.cache_store.layout import Side, Status
from vlpipe.cache_store.preview import Growth, check_room
from vlpipe.cache_store.writer import StoreWriter
from vlpipe.extract.blocks import CONTENT, Lost, tasks
from vlpipe.extract.failures import FailureFile
from vlpipe.extract.job import Job
from vlpipe.extract.passes import Lane, run_pass
from vlpipe.extract.replaced import replaced_rows
from vlpipe.foundation.errors import TooManyFailuresError, VlpipeError
from vlpipe.foundation.progress import progress

if TYPE_CHECKING:
    from vlpipe.extract.cluster import Cluster


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
    reason: str | None = None  # the commonest, and how often: "the file does not exist (4 of 5)"
    healed: tuple[str, ...] = ()  # a line for each damaged file or chunk that was made anew

    def check(self, allowed: float) -> None:
        """Raise `TooManyFailuresError` when more than this share of the rows failed, or all of them."""
        usable = self.ok + self.cut
        if self.failed and (self.failed > allowed * self.rows or not usable):
            raise TooManyFailuresError(
                f"{self.failed} of {self.rows} {self.side} rows failed, more than --max-failures {allowed:g} "
                f"allows; most often: {self.reason}; the other {usable} are kept, all reasons are in "
                f"'{self.failures}'; mend the items and add --retry-failed"
            )


def extract(job: Job) -> Summary:
    """One job; see `extract_all`."""
    return extract_all([job])[0]


def extract_all(jobs: Sequence[Job], cluster: Cluster | None = None) -> list[Summary]:
    """Encode the blocks of stores that are missing, and rows that are damaged or whose picture was replaced.

    The jobs are of one side of one manifest: each of its items is read once. A row that fails is kept as such and
    listed. The workers of a `cluster` do blocks of which all rows are to be done.

    Raises `StaleCacheError` for a store of something else, `ValueRangeError` for a value that does not fit,
    `CacheWriteError` where the disk cannot hold it, `InterruptedRunError`; all that was committed before stays.
    """
    started = time.monotonic()
    runs = [_Run(job) for job in jobs]
    _check_room(runs)
    lanes = [run.lane for run in runs]
    try:
        with progress(_label(jobs), sum(lane.rows() for lane in lanes)) as advance:
            if cluster:
                from vlpipe.extract.cluster import encode_on  # which imports Dask: a second

                encode_on(cluster, lanes, advance)
            run_pass(lanes, advance)
    except KeyboardInterrupt:
        kept = ", ".join(str(run.kept()) for run in runs)
        rows = f"{jobs[0].manifest.count(jobs[0].side)} {jobs[0].side} rows"
        raise InterruptedRunError(
            f"interrupted: {kept} of {rows} are kept; the same command goes on from there"
        ) from None
    finally:
        for run in runs:
            run.lane.failures.keep(partial(_still_failed, run.writer))
    seconds = round(time.monotonic() - started, 3)
    return [run.summary(seconds) for run in runs]


def _label(jobs: Sequence[Job]) -> str:
    return f"{', '.join(job.name for job in jobs)} {jobs[0].side}"


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


def _reason(failures: FailureFile, failed: int) -> str | None:
    found = failures.commonest()
    return f"{found[0]} ({found[1]} of {failed})" if found else None


def _check_complete(writer: StoreWriter, absent: int) -> None:
    if absent:
        raise VlpipeError(
            f"{absent} rows of '{writer.path}' are being encoded by another process; run the same command again "
            "when that one has ended"
        )


class _Run:
    """One job: what it finds, and what it tells in the end."""

    def __init__(self, job: Job) -> None:
        check_source(job)
        self.job = job
        self.asked = job.open()
        self.writer = self.asked.writer
        self.lost = self.writer.lost(thorough=job.check_content)
        todo = tasks(job, self.asked, _again(job, self.writer), self.lost)
        self.growth = self.writer.growth(block for block, task in todo.items() if task.places is None)
        self.lane = Lane(job, self.asked, todo)
        self._rows = job.manifest.count(job.side)

    def kept(self) -> int:
        """Rows that are committed now."""
        return self._rows - self.writer.counts().get(Status.ABSENT, 0)

    def summary(self, seconds: float) -> Summary:
        """Of the whole store. Raises `VlpipeError` where another process holds some of its blocks."""
        counts = self.writer.counts()
        failed = counts.get(Status.FAILED, 0)
        _check_complete(self.writer, counts.get(Status.ABSENT, 0))
        lane = self.lane
        return Summary(
            encoder=self.job.name,
            side=self.job.side,
            store=str(self.job.store),
            outputs=tuple(self.asked.work.outputs),
            rows=self._rows,
            encoded=lane.encoded,
            copied=lane.copied,
            already=self._rows - lane.encoded - lane.copied,
            ok=counts.get(Status.OK, 0),
            cut=counts.get(Status.CUT, 0),
            failed=failed,
            zero_norm=lane.zero_norm,
            seconds=seconds,
            failures=str(lane.failures.path) if failed else None,
            reason=_reason(lane.failures, failed) if failed else None,
            healed=_healed(self.writer, self.lost),
        )


def _check_room(runs: Sequence[_Run]) -> None:
    """All stores together must fit; they lie in one cache."""
    for run in runs:
        check_room(run.job.store, run.growth)
    check_room(runs[0].job.cache, Growth(sum(r.growth.bytes for r in runs), sum(r.growth.files for r in runs)))
