"""Blocks handed to the workers of a Dask cluster, which load the encoders by their specs and write the stores.

What travels are names and numbers in JSON: no model and no row. So workers need vlpipe, and manifest, pictures,
models and cache under the same paths. A block is done by one worker, which holds its lock; one that dies leaves
blocks that it has committed, and Dask hands out the rest again.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock, current_thread, main_thread
from typing import Any

import distributed
import torch
from distributed import KilledWorker, LocalCluster

from vlpipe.extract.blocks import Task
from vlpipe.extract.job import Job
from vlpipe.extract.load import load_encoder
from vlpipe.extract.passes import Lane, run_pass
from vlpipe.foundation.errors import StaleError, UsageError, VlpipeError
from vlpipe.foundation.progress import Advance, silent
from vlpipe.manifests.manifest import Manifest

LOCAL = "local:"
PARTS = 8  # for each worker, so that all end at about the same time
SECONDS = 30  # until a scheduler answers and has a worker
FIELDS = ("name", "side", "outputs", "dtype", "batch_size", "tokens", "spec", "settings")
_one_at_a_time = Lock()  # models are not made to be run by several threads

Blocks = list[list[int]]  # by lane


class ClusterError(VlpipeError):
    """A cluster that cannot be reached, or does not do its work."""


class Cluster:
    """`address` of a scheduler, or `local:N`: N processes of this machine, from when they are needed to `close`.

    `threads` are those of a worker's model and `workers` its processes that decode; by default the processors of
    its machine, of which each of N local ones has its share. Raises `UsageError` for another N than a number.
    """

    def __init__(self, address: str, threads: int | None = None, workers: int | None = None) -> None:
        count = address.removeprefix(LOCAL)
        if address.startswith(LOCAL) and not (count.isdecimal() and int(count)):
            raise UsageError(f"--dask {address}: expected a number of processes, for example local:4")
        self.address = address
        self.shares = {"threads": threads, "workers": workers}
        self._local = int(count) if address.startswith(LOCAL) else 0
        if self._local:
            share = max(1, (os.cpu_count() or 1) // self._local)
            self.shares = {name: share if asked is None else asked for name, asked in self.shares.items()}
        self._open = ExitStack()

    @cached_property
    def client(self) -> Any:
        """A client with workers. Raises `ClusterError`."""
        untyped: Any = distributed.Client
        try:
            address = self._open.enter_context(_local_cluster(self._local)) if self._local else self.address
            client = self._open.enter_context(untyped(address, timeout=SECONDS, set_as_default=False))
            client.wait_for_workers(1, timeout=SECONDS)
        except (OSError, ValueError, TimeoutError) as error:
            raise ClusterError(
                f"--dask {self.address}: no scheduler with a worker answers there ({error}); expected one like "
                "tcp://10.0.0.1:8786, or local:4"
            ) from None
        self._open.callback(client.run, _opened.cache_clear)  # a model that stays would hold a GPU's memory
        return client

    def close(self) -> None:
        """Let go of the workers, or end the local ones."""
        self._open.close()


def _local_cluster(count: int) -> LocalCluster:
    # Their memory is not limited: a worker that is ended for it would only be ended again.
    with _ctrl_c_ignored():
        return LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=count,
            threads_per_worker=1,
            memory_limit=0,
            dashboard_address="localhost:0",  # a port that is free; with None it would be 8787
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
        )


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """By processes that start inside: Ctrl-C is for the extraction, which then ends them."""
    if current_thread() is not main_thread():  # only that may say so
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def encode_on(cluster: Cluster, lanes: Sequence[Lane], advance: Advance) -> None:
    """Have workers do the blocks that are missing in some lanes, which then have less to do.

    What is to be mended inside of blocks is left. Raises `ClusterError`, and what a worker raised.
    """
    parts = _parts(lanes)
    if not parts:
        return
    client, order = cluster.client, _order(cluster, lanes)
    together = -(-len(parts) // (PARTS * len(client.nthreads())))
    groups = [_joined(parts[start : start + together]) for start in range(0, len(parts), together)]
    futures = [client.submit(encode_blocks, order, json.dumps(group), pure=False) for group in groups]
    try:
        finished = distributed.as_completed(futures, loop=client.loop)  # type: ignore[no-untyped-call]
        _take(lanes, finished, dict(zip(futures, groups, strict=True)), advance)
    finally:
        client.cancel(futures, force=True)


def encode_blocks(order: str, blocks: str) -> str:
    """On a worker: do some blocks, by lane, that are not committed yet; returns what was counted, or an error."""
    wanted: Blocks = json.loads(blocks)
    try:
        with _one_at_a_time:
            lanes = [_lane(work, numbers) for work, numbers in zip(_opened(order), wanted, strict=True)]
            run_pass(lanes, silent)
    except VlpipeError as error:
        return json.dumps({"error": str(error), "code": error.exit_code})
    return json.dumps({"counts": [(lane.encoded, lane.copied, lane.zero_norm) for lane in lanes]})


@lru_cache(maxsize=1)
def _opened(order: str) -> list[tuple[Job, Any]]:
    """Jobs with what they open, kept for the next blocks."""
    what = json.loads(order)
    if what["threads"]:
        torch.set_num_threads(what["threads"])
    manifest = Manifest.open(Path(what["manifest"]))
    if manifest.digest != what["digest"]:
        raise StaleError(f"manifest '{manifest.folder}' of a worker is another one; give all the same folder")
    jobs = []
    for fields in what["jobs"]:
        encoder = load_encoder(fields["spec"], fields["settings"])
        workers = (os.cpu_count() or 1) if what["workers"] is None else what["workers"]
        fields |= {"outputs": tuple(fields["outputs"]), "workers": workers}
        jobs.append(Job(manifest, encoder, cache=Path(what["cache"]), **fields))
    return [(job, job.open()) for job in jobs]


def _lane(work: tuple[Job, Any], blocks: Sequence[int]) -> Lane:
    job, asked = work
    return Lane(job, asked, {block: Task(asked, None) for block in asked.writer.missing(blocks)})


def _order(cluster: Cluster, lanes: Sequence[Lane]) -> str:
    job = lanes[0].job
    jobs = [{name: getattr(lane.job, name) for name in FIELDS} for lane in lanes]
    folder, cache = (str(path.absolute()) for path in (job.manifest.folder, job.cache))
    what = {"manifest": folder, "digest": job.manifest.digest, "cache": cache, "jobs": jobs}
    return json.dumps(what | cluster.shares)


def _parts(lanes: Sequence[Lane]) -> list[Blocks]:
    """What is handed out together: whole blocks, of several lanes those of the same rows."""
    largest = max(lane.asked.writer.block_rows for lane in lanes)
    found: dict[int, Blocks] = defaultdict(lambda: [[] for _ in lanes])
    for place, lane in enumerate(lanes):
        for block, task in sorted(lane.todo.items()):
            if task.places is None and task.target is lane.asked:
                found[block * lane.asked.writer.block_rows // largest][place].append(block)
    return [found[number] for number in sorted(found)]


def _joined(parts: Sequence[Blocks]) -> Blocks:
    return [[block for blocks in of_lane for block in blocks] for of_lane in zip(*parts, strict=True)]


def _take(lanes: Sequence[Lane], finished: Iterable[Any], groups: Mapping[Any, Blocks], advance: Advance) -> None:
    """Count what comes back, as it comes."""
    for future in finished:
        try:
            answer = json.loads(future.result())
        except KilledWorker as error:
            raise ClusterError(f"blocks {groups[future]} ended the workers that had them: {error}") from None
        except Exception as error:  # whatever a worker trips over, a missing library for example
            raise ClusterError(f"a worker failed: {type(error).__name__}: {error}") from error
        if "error" in answer:
            raise _kind(answer["code"])(answer["error"])
        for lane, blocks, counts in zip(lanes, groups[future], answer["counts"], strict=True):
            advance(sum(lane.todo.pop(block).count(block) for block in blocks))
            lane.count(*counts)


def _kind(code: int) -> type[VlpipeError]:
    return next((kind for kind in (StaleError, UsageError) if kind.exit_code == code), VlpipeError)
