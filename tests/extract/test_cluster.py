"""Blocks done by the workers of a real Dask cluster of local processes."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from toys.fresh import work_done
from toys.mini import BAD, captions, job, manifest, store_files

from vlpipe.cache_store.errors import StaleCacheError
from vlpipe.cache_store.layout import Status, lock_path, marker_path
from vlpipe.extract.cluster import Cluster, ClusterError, encode_blocks
from vlpipe.extract.job import Job
from vlpipe.extract.run import extract, extract_all
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.manifests.manifest import Manifest
from vlpipe.pipeline import run

TOYS = Path(__file__).parent
BOTH = ("pooled", "tokens")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two workers, which find the toys as the command line would."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(TOYS)
    with closing(Cluster("local:2")) as found:
        assert found.client
        yield found
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def rows(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Four blocks of 64 or fewer; five rows fail."""
    paths = [*(f"{n:03d}.png" for n in range(150)), *BAD, *(f"{n:03d}.png" for n in range(150, 200))]
    return manifest(tmp_path_factory.mktemp("cluster") / "m", photos, paths, captions(205))


def remote(found: Manifest, cache: Path, side: Any = "image", **options: Any) -> Job:
    """A job that another process can load."""
    settings = options.pop("settings", {})
    work = job(found, cache, side, settings=settings, batch_size=8, **options)
    return dataclasses.replace(work, spec="toys.toy:Toy:m", settings=settings)


def listed(work: Job) -> list[str]:
    lines = work.store.with_suffix(".failures.jsonl").read_text().splitlines()
    return sorted(json.loads(line)["id"] for line in lines)


def test_the_store_is_that_of_one_process(cluster: Cluster, rows: Manifest, tmp_path: Path) -> None:
    jobs = [remote(rows, tmp_path / "c", outputs=BOTH), remote(rows, tmp_path / "c", outputs=("pooled",))]
    jobs[1] = dataclasses.replace(jobs[1], name="other")
    found = extract_all(jobs, cluster)
    assert [work_done(summary) for summary in found] == [(205, 0, 0)] * 2
    assert [(summary.ok, summary.failed) for summary in found] == [(200, 5)] * 2
    for work in jobs:
        alone = dataclasses.replace(work, cache=tmp_path / "alone")
        extract(alone)
        assert store_files(work.store) == store_files(alone.store)
        assert listed(work) == listed(alone) == sorted(f"i:{path}" for path in BAD)
    assert [work_done(summary) for summary in extract_all(jobs, cluster)] == [(0, 0, 205)] * 2


def test_texts_and_their_settings(cluster: Cluster, rows: Manifest, tmp_path: Path) -> None:
    work = dataclasses.replace(remote(rows, tmp_path / "c", "text", settings={"scale": 2.0}), tokens=200)
    extract_all([work], cluster)
    alone = dataclasses.replace(work, cache=tmp_path / "alone")
    extract(alone)
    assert store_files(work.store) == store_files(alone.store)


def killed_in_the_middle(cluster: Cluster, log: Path) -> threading.Thread:
    """A thread that kills one worker when the log says that ten batches are done."""
    first = next(iter(cluster.client.run(os.getpid).values()))

    def kill() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and (not log.exists() or len(log.read_text().splitlines()) < 10):
            time.sleep(0.005)
        os.kill(first, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def test_a_worker_killed_in_the_middle(cluster: Cluster, rows: Manifest, tmp_path: Path) -> None:
    log = tmp_path / "log"
    work = remote(rows, tmp_path / "c", outputs=BOTH, settings={"seconds": 0.05, "log": str(log)})
    thread = killed_in_the_middle(cluster, log)
    found = extract_all([work], cluster)[0]
    thread.join()
    assert (found.ok, found.failed) == (200, 5)
    alone = remote(rows, tmp_path / "alone", outputs=BOTH)
    extract(alone)
    assert store_files(work.store) == store_files(alone.store)
    assert listed(work) == listed(alone)
    encoded = sum(map(int, log.read_text().splitlines()))
    assert 200 <= encoded < 300  # at most what the dead one had not committed is done twice


def test_blocks_that_another_process_holds_are_left(cluster: Cluster, rows: Manifest, tmp_path: Path) -> None:
    work = remote(rows, tmp_path / "c")
    work.open()
    with lock_path(work.store, 1).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(VlpipeError, match=r"64 rows of .* another process"):
            extract_all([work], cluster)
    assert work_done(extract_all([work], cluster)[0]) == (64, 0, 141)


def test_what_is_mended_inside_of_a_block_is_done_here(cluster: Cluster, rows: Manifest, tmp_path: Path) -> None:
    work = remote(rows, tmp_path / "c", outputs=BOTH)
    extract_all([work], cluster)
    before = store_files(work.store)
    (work.store / "pooled" / "c.0.0").write_bytes(b"damaged")
    marker_path(work.store, 2).unlink()
    found = extract_all([work], cluster)[0]
    assert found.encoded == 64 + 64
    assert store_files(work.store) == before


def test_a_worker_with_another_model_is_refused(cluster: Cluster, rows: Manifest, tmp_path: Path) -> None:
    work = dataclasses.replace(remote(rows, tmp_path / "c"), spec="toys.toy:Toy:other")
    with pytest.raises(VlpipeError, match="weights") as caught:
        extract_all([work], cluster)
    assert caught.value.exit_code == StaleCacheError.exit_code
    bad = dataclasses.replace(remote(rows, tmp_path / "d"), spec="toys.gone:Toy")
    with pytest.raises(VlpipeError, match=r"toys\.gone"):
        extract_all([bad], cluster)


@pytest.mark.parametrize("address", ["local:", "local:0", "local:two", "local:-1"])
def test_a_number_of_processes_is_asked_for(address: str) -> None:
    with pytest.raises(UsageError, match="local:4"):
        Cluster(address)


def test_no_scheduler_is_one_line(rows: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlpipe.extract.cluster.SECONDS", 0.5)
    for address in ("tcp://127.0.0.1:1", "nonsense://x"):
        with closing(Cluster(address)) as found, pytest.raises(ClusterError, match="--dask"):
            extract_all([remote(rows, tmp_path / "c")], found)


def test_processors_are_shared_among_local_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert Cluster("local:3").shares == {"threads": 2, "workers": 2}
    assert Cluster("local:16", workers=0).shares == {"threads": 1, "workers": 0}
    assert Cluster("tcp://a:1", threads=4).shares == {"threads": 4, "workers": None}


def test_nothing_to_do_starts_no_cluster(rows: Manifest, tmp_path: Path) -> None:
    work = remote(rows, tmp_path / "c")
    extract(work)
    with closing(Cluster("tcp://127.0.0.1:1")) as found:
        assert work_done(extract_all([work], found)[0]) == (0, 0, 205)


def test_interrupted_from_the_command_line(rows: Manifest, tmp_path: Path) -> None:
    """Ctrl-C reaches the whole group; what was committed stays, and the same command goes on."""
    log, cache = tmp_path / "log", tmp_path / "c"
    base = ["extract", "--manifest", str(rows.folder), "--cache", str(cache), "--encoder", "toys.toy:Toy:m"]
    slow = ["--batch-size", "8", "--side", "image", "--dask", "local:2", "--set", "seconds=0.4"]
    process = subprocess.Popen(
        [sys.executable, "-m", "vlpipe.pipeline", *base, *slow, "--set", f'log="{log}"'],
        env=os.environ | {"PYTHONPATH": str(TOYS)}, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        wait_until(lambda: any((cache).glob("*/*.zarr/status/blocks/*.json")))
        os.killpg(process.pid, signal.SIGINT)
        told = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 130
    assert told.startswith("error: interrupted: ")
    assert told.count("\n") == 1
    alone = dataclasses.replace(remote(rows, tmp_path / "alone"), name="toys.toy:Toy:m")
    extract(alone)
    work = dataclasses.replace(alone, cache=cache)
    kept = 205 - work.open().writer.counts()[Status.ABSENT]
    assert 0 < kept < 205
    assert work_done(extract(work)) == (205 - kept, 0, kept)
    assert store_files(work.store) == store_files(alone.store)


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_command_refuses_an_odd_address(rows: Manifest, tmp_path: Path, capsys: Any) -> None:
    base = ["extract", "--manifest", str(rows.folder), "--cache", str(tmp_path), "--encoder", "toys.toy:Toy:m"]
    assert run([*base, "--dask", "local:0"]) == 2
    assert "local:4" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_task_answers_in_words(tmp_path: Path) -> None:
    order = json.dumps(
        {"threads": 1, "workers": 0, "manifest": str(tmp_path), "digest": "", "cache": "", "jobs": []}
    )
    answer = json.loads(encode_blocks(order, "[]"))
    assert answer["code"] == 1
    assert "manifest" in answer["error"]
