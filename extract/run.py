"""One side of a manifest through one encoder into its store: what is missing is encoded, nothing else."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from vlpipe.cache_store.group import output_names
from vlpipe.cache_store.layout import ArraySpec, Side, Status, store_path
from vlpipe.cache_store.writer import StoreWriter
from vlpipe.extract.contracts import Encoder
from vlpipe.extract.failures import FailureFile
from vlpipe.extract.load import fingerprints
from vlpipe.extract.output_names import find_output
from vlpipe.extract.replaced import replaced_rows
from vlpipe.extract.rows import Encoded, Source, Work, encode_rows, prepare_rows
from vlpipe.foundation.errors import TooManyFailuresError, VlpipeError
from vlpipe.foundation.progress import progress
from vlpipe.manifests.manifest import Manifest

CONTENT: dict[Side, str] = {"image": "path", "text": "text"}


class InterruptedRunError(VlpipeError):
    """Stopped by the user; what was committed stays."""

    exit_code = 130


@dataclass(frozen=True)
class Job:
    """What to encode and how. `name` is the store's: the encoder's spec, or what `--as` says."""

    manifest: Manifest
    encoder: Encoder
    name: str
    side: Side
    outputs: tuple[str, ...]
    cache: Path
    dtype: str = "float16"
    batch_size: int = 64
    workers: int = 1
    retry_failed: bool = False
    check_content: bool = True

    @property
    def store(self) -> Path:
        """The store's folder."""
        return store_path(self.cache, self.manifest.digest, self.name, self.side)


@dataclass(frozen=True)
class Summary:
    """Rows counted: `encoded` in this run, of which `zero_norm` have no direction; the rest of the whole store."""

    encoder: str
    side: Side
    store: str
    outputs: tuple[str, ...]
    rows: int
    encoded: int
    already: int
    ok: int
    cut: int
    failed: int
    zero_norm: int
    seconds: float
    failures: str | None

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
    """Encode the blocks of a store that are missing, and rows whose picture was replaced since.

    A row that fails is kept as such and listed.

    Raises `StaleCacheError` for a store of something else, `ValueRangeError` for a value that does not fit,
    `InterruptedRunError`; all that was committed before stays.
    """
    started = time.monotonic()
    _check_source(job)
    ids = job.manifest.table(job.side, [f"{job.side}_id"]).column(0).to_pylist()
    work, writer = _open(job, ids, every_output=job.retry_failed)
    again = _replaced(job, writer)
    if again:
        work, writer = _open(job, ids, every_output=True)
    if job.retry_failed:
        again |= set(writer.failed().tolist())
    run = _Run(job, work, writer, again)
    failures = FailureFile(job.store)
    try:
        run.all_blocks()
    except KeyboardInterrupt:
        kept = len(ids) - writer.counts().get(Status.ABSENT, 0)
        raise InterruptedRunError(
            f"interrupted: {kept} of {len(ids)} {job.side} rows are kept; the same command goes on from there"
        ) from None
    finally:
        unsettled = [row for block in writer.missing() for row in writer.span(block)]
        failures.keep({ids[row] for row in [*writer.failed(), *unsettled]})
    counts = writer.counts()
    _check_complete(writer, counts.get(Status.ABSENT, 0))
    return Summary(
        encoder=job.name,
        side=job.side,
        store=str(job.store),
        outputs=tuple(work.outputs),
        rows=len(ids),
        encoded=run.encoded,
        already=len(ids) - run.encoded,
        ok=counts.get(Status.OK, 0),
        cut=counts.get(Status.CUT, 0),
        failed=counts.get(Status.FAILED, 0),
        zero_norm=run.zero_norm,
        seconds=round(time.monotonic() - started, 3),
        failures=str(failures.path) if counts.get(Status.FAILED, 0) else None,
    )


def _check_source(job: Job) -> None:
    if not job.manifest.count(job.side):
        raise VlpipeError(f"manifest '{job.manifest.folder}' has no {job.side}s to encode")
    if job.side == "image" and not job.manifest.image_root.is_dir():
        raise VlpipeError(f"the pictures' folder '{job.manifest.image_root}' of the manifest does not exist")


def _open(job: Job, ids: list[str], *, every_output: bool) -> tuple[Work, StoreWriter]:
    """How rows are encoded, and the store. Rows that are written again need every output that the store has: a
    row is usable only when all of them come from one content.
    """
    known = job.encoder.outputs(job.side)
    names = [find_output(name, known) for name in job.outputs]
    if every_output and job.store.exists():
        names += [name for name in output_names(job.store) if name in known]
    specs = {name: ArraySpec(known[name].shape, job.dtype) for name in names}
    writer = StoreWriter.open(
        job.store,
        manifest=job.manifest.digest,
        side=job.side,
        encoder=job.name,
        ids=ids,
        outputs=specs,
        fingerprints=fingerprints(job.encoder, job.side, specs, job.dtype),
        constants=job.encoder.constants,
    )
    return Work(job.encoder, job.side, specs, job.manifest.image_root, job.batch_size, job.workers), writer


def _replaced(job: Job, writer: StoreWriter) -> set[int]:
    """Committed rows whose picture has changed since; texts stand in the manifest, which has a digest."""
    if job.side == "text" or not job.check_content:
        return set()
    batches = job.manifest.batches("image", [CONTENT["image"]], writer.block_rows)
    paths = (path for batch in batches for path in batch.column(0).to_pylist())
    return set(replaced_rows(job.manifest.image_root, paths, writer.content(), job.workers))


def _check_complete(writer: StoreWriter, absent: int) -> None:
    if absent:
        raise VlpipeError(
            f"{absent} rows of '{writer.path}' are being encoded by another process; run the same command again "
            "when that one has ended"
        )


@dataclass(frozen=True)
class Part:
    """What is encoded of one block: all of it, or the rows at `places`, counted from its first."""

    block: int
    sources: list[Source]
    places: list[int] | None


class _Run:
    """The pass over a store's blocks, and what it counts."""

    def __init__(self, job: Job, work: Work, writer: StoreWriter, again: set[int]) -> None:
        self.job, self.work, self.writer = job, work, writer
        self.again = self._by_block(again)
        self.failures = FailureFile(job.store)
        self.encoded = 0
        self.zero_norm = 0

    def all_blocks(self) -> None:
        """Encode the missing blocks in order, and single rows of committed ones that are to be done again.

        Rows are prepared ahead over the ends of blocks; those of a block that another process holds are dropped.
        """
        parts: deque[Part] = deque()
        prepared = prepare_rows(self.work, self._sources(set(self.writer.missing()), parts))
        with progress(f"{self.job.name} {self.job.side}", self._total()) as advance, closing(prepared):
            for first in prepared:  # asking for it has filled `parts`
                part = parts.popleft()
                results = islice(chain([first], prepared), len(part.sources))
                with self.writer.claim(part.block) as mine:
                    if mine:
                        self._finish(part, encode_rows(self.work, results, len(part.sources)))
                deque(results, maxlen=0)
                advance(len(part.sources))

    def _total(self) -> int:
        missing = self.writer.missing()
        again = (len(places) for block, places in self.again.items() if block not in missing)
        return sum(len(self.writer.span(block)) for block in missing) + sum(again)

    def _by_block(self, rows: set[int]) -> dict[int, list[int]]:
        """Rows by block, counted from the block's first."""
        found: dict[int, list[int]] = {}
        for row in sorted(rows):
            block, place = divmod(row, self.writer.block_rows)
            found.setdefault(block, []).append(place)
        return found

    def _sources(self, missing: set[int], parts: deque[Part]) -> Iterator[Source]:
        """The rows to encode, in order; each block is put on `parts` when its first row is asked for."""
        if not missing and not self.again:
            return
        side = self.job.side
        batches = self.job.manifest.batches(side, [f"{side}_id", CONTENT[side]], self.writer.block_rows)
        for block, batch in enumerate(batches):
            places = None if block in missing else self.again.get(block, [])
            rows = batch if places is None else batch.take(pa.array(places, pa.int64()))
            if len(rows):
                sources = list(map(Source, rows.column(0).to_pylist(), rows.column(1).to_pylist()))
                parts.append(Part(block, sources, places))
                yield from sources

    def _finish(self, part: Part, found: Encoded) -> None:
        self._list(found, part.sources)
        rows, status, content = found.rows, found.status, found.content_hash
        if part.places is not None:  # the other rows of the block keep their values
            old = self.writer.read_block(part.block)
            rows = {name: np.array(values, np.float32) for name, values in old.rows.items()}
            status, content = old.status.copy(), old.content_hash.copy()
            for name, values in rows.items():
                values[part.places] = found.rows[name]
            status[part.places], content[part.places] = found.status, found.content_hash
        self.writer.write(part.block, rows, status, content)
        self.encoded += len(part.sources)
        self.zero_norm += found.zero_norm()

    def _list(self, found: Encoded, sources: list[Source]) -> None:
        """Before the block is committed: a failed row in a store always has its reason."""
        what = CONTENT[self.job.side]
        records = [
            {"id": sources[row].id, what: sources[row].content, "reason": reason}
            for row, reason in found.failures.items()
        ]
        self.failures.add(records)
