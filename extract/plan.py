"""What an extraction would do, cost and take; nothing is written."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.layout import Side
from vlpipe.cache_store.preview import free_bytes
from vlpipe.extract.blocks import CONTENT
from vlpipe.extract.job import Job, Target
from vlpipe.extract.prefetch import Failure, prefetch
from vlpipe.extract.preparing import AHEAD, prepare_alone, read_content
from vlpipe.extract.rows import Find, Work, encode_rows
from vlpipe.extract.run import check_source
from vlpipe.foundation.console import size_words

SAMPLE = {"image": 256, "text": 16_384}  # rows whose content is looked up, so that a plan stays quick
BATCHES = 3  # that are timed, after one that warms up
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """Rows to `encode`, to `copy` from equal content, and `already` there; how a store grows; how long it takes.

    Where the content of only some rows was `looked_up`, `copy` is estimated from these. `bytes` and `files` are
    added, `free` bytes are on the disk. `rows_per_second` says how fast rows are read and prepared, and encoded;
    `seconds` is None where nothing is to be encoded, or nothing that was tried could be.
    """

    encoder: str
    side: Side
    store: str
    outputs: tuple[str, ...]
    rows: int
    encode: int
    copy: int
    already: int
    looked_up: int
    bytes: int
    files: int
    free: int
    rows_per_second: dict[str, float]
    seconds: float | None


def plan(job: Job) -> Plan:
    """What `extract` would do for a job: rows that are missing, and on request those that failed.

    Pictures that were replaced, and rows that are damaged, are not looked for. Raises as `extract` does for what
    it refuses before it encodes.
    """
    check_source(job)
    target = job.open(dry=True)
    blocks = target.writer.missing()
    todo = _todo(job, target, blocks)
    sample = list(_rows_at(job, _spread(todo, SAMPLE[job.side])))
    known = _known(target.work, sample, target.known.find) if sample else 0
    copied = round(known / max(len(sample), 1) * len(todo))
    encode = len(todo) - copied
    speeds = _speeds(target.work, _rows_at(job, _spread(todo, (1 + BATCHES) * job.batch_size))) if encode else {}
    more = target.writer.growth(blocks)
    return Plan(
        encoder=job.name,
        side=job.side,
        store=str(job.store),
        outputs=tuple(target.work.outputs),
        rows=job.manifest.count(job.side),
        encode=encode,
        copy=copied,
        already=job.manifest.count(job.side) - len(todo),
        looked_up=len(sample),
        bytes=more.bytes,
        files=more.files,
        free=free_bytes(job.store),
        rows_per_second=speeds,
        seconds=_seconds(job, encode, speeds),
    )


def _todo(job: Job, target: Target, missing: Sequence[int]) -> Places:
    """The rows that would be done, ascending."""
    spans = [np.arange(span.start, span.stop) for span in map(target.writer.span, missing)]
    found = np.concatenate([np.empty(0, np.int64), *spans])
    return np.union1d(found, target.writer.failed()) if job.retry_failed else found


def _spread(rows: Places, count: int) -> Places:
    """At most so many of the rows, evenly spread."""
    count = min(count, len(rows))
    chosen: Places = rows[np.arange(count) * len(rows) // max(count, 1)]
    return chosen


def _rows_at(job: Job, rows: Places) -> Iterator[tuple[str, str]]:
    """Ids and contents of some rows of the manifest, in order, without the table in memory."""
    start = 0
    for batch in job.manifest.batches(job.side, [f"{job.side}_id", CONTENT[job.side]], 16_384):
        here = rows[(rows >= start) & (rows < start + len(batch))] - start
        columns = (column.take(here).to_pylist() for column in batch)
        yield from zip(*columns, strict=True)
        start += len(batch)


def _known(work: Work, rows: Iterable[tuple[str, str]], find: Find) -> int:
    """How many rows have content that is known, or comes among them before."""
    workers = work.workers if work.side == "image" else 0
    found, seen = 0, set()
    for content in prefetch(lambda row: read_content(work, row[1])[0], rows, workers, AHEAD * workers):
        if not isinstance(content, Failure):
            found += content in seen or find(content) is not None
            seen.add(content)
    return found


def _speeds(work: Work, sources: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Rows a second of preparing, and of encoding without it; nothing where no row could be encoded."""
    rows = list(sources)
    ready = prepare_alone(work, *map(list, zip(*rows, strict=True)))
    results = list(islice(ready, 1))  # processes that decode have started then
    started = time.perf_counter()
    results += ready
    prepared = time.perf_counter()
    size = work.batch_size
    batches = [results[start : start + size] for start in range(0, len(results), size)]
    warm = encode_rows(work, iter(batches[0]), len(batches[0]))
    begun = time.perf_counter()
    timed = batches[1:] or batches
    failed = sum(len(encode_rows(work, iter(batch), len(batch)).failures) for batch in timed)
    count = sum(map(len, timed)) - failed
    if count <= 0 or len(warm.failures) == len(batches[0]):
        return {}
    return {
        "prepare": round(len(rows) / (prepared - started), 1),
        "encode": round(count / (time.perf_counter() - begun), 1),
    }


def _seconds(job: Job, rows: int, speeds: dict[str, float]) -> float | None:
    """Both together: at a time where pictures are prepared while a GPU encodes, else one after the other."""
    if not speeds:
        return None
    both = [rows / speed for speed in speeds.values()]
    device = str(getattr(job.encoder, "device", "cpu"))
    apart = job.side == "image" and not device.startswith("cpu")
    return round(max(both) if apart else sum(both), 1)


def plan_line(found: Plan) -> str:
    """`toy image pooled: 40 rows to encode, 5 to copy, 60 are there; ...; about 3 s (...) -> STORE`."""
    about = "about " if found.looked_up < found.encode + found.copy else ""
    rows = f"{about}{found.encode} rows to encode, {about}{found.copy} to copy, {found.already} are there"
    if about:
        rows += f" (content of {found.looked_up} looked up)"
    room = f"{size_words(found.bytes)} in {found.files} new files, {size_words(found.free)} free"
    if found.seconds is not None:
        speeds = ", ".join(f"{word} {speed:g}" for word, speed in found.rows_per_second.items())
        took = f"{_duration(found.seconds)} (rows a second: {speeds})"
    else:
        took = "no row that was tried could be encoded" if found.encode else "nothing to encode"
    outputs = ", ".join(found.outputs)
    return f"{found.encoder} {found.side} {outputs}: {rows}; {room}; {took} -> {found.store}"


def _duration(seconds: float) -> str:
    for unit, size, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < most * size:
            return f"about {seconds / size:.0f} {unit}" if seconds >= 1 else "under 1 s"
    return f"about {seconds / 86400:.0f} days"
