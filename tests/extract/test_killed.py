"""An extraction that dies at any moment, or whose disk does: what is committed stays, the rest comes later."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys.mini import captions, counts, job, manifest, store_files

from vlpipe.cache_store import layout
from vlpipe.cache_store.reader import open_features
from vlpipe.cache_store.verify import verify_store
from vlpipe.extract.job import Job
from vlpipe.extract.run import extract
from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.manifest import Manifest

PATHS = [*(f"{n:03d}.png" for n in range(196)), "cut.png"]  # four blocks of 64 or less; one row fails
BOTH = ("pooled", "tokens")
SERVER = Path(__file__).parent / "toys" / "fork_server.py"


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "CHUNK_BYTES", 384)


@pytest.fixture(scope="module")
def pictures(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return manifest(tmp_path_factory.mktemp("killed") / "m", photos, PATHS, captions(3))


@pytest.fixture
def whole(pictures: Manifest, tmp_path: Path) -> dict[str, bytes]:
    """The files of an uninterrupted store."""
    work = job(pictures, tmp_path / "whole", outputs=BOTH)
    extract(work)
    return store_files(work.store)


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(SERVER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


def run_killed(server: subprocess.Popen[str], found: Manifest, cache: Path, seconds: float | None) -> float:
    """Kill it after some seconds, where it has not ended by then; returns how long it ran."""
    started = time.monotonic()
    assert server.stdin
    assert server.stdout
    print(found.folder, cache, 0.004, file=server.stdin, flush=True)
    child = int(server.stdout.readline())
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    print("wait", file=server.stdin, flush=True)
    assert int(server.stdout.readline()) in (0, -signal.SIGKILL)
    return time.monotonic() - started


def committed(work: Job, whole: dict[str, bytes]) -> int:
    """Rows of blocks that are committed; each of their files is that of the uninterrupted store, to the bit."""
    if not work.store.exists():
        return 0
    damage = verify_store(work.store)
    assert all("killed" in found.what for found in damage), damage
    markers = sorted((work.store / "status" / "blocks").glob("*.json"))
    for marker in markers:
        assert marker.read_bytes() == whole[f"status/blocks/{marker.name}"]
    rows = 0
    for name in BOTH:
        if (work.store / name).exists():
            features = open_features(work.store, name)
            rows = int((features.status > 0).sum())
            features.take(np.flatnonzero(features.usable))
    assert rows == sum(min(64, len(PATHS) - 64 * int(marker.stem)) for marker in markers)
    return rows


def check(work: Job, whole: dict[str, bytes]) -> int:
    """What is committed is right; going on encodes the others, ends in the same store, then nothing is left."""
    kept = committed(work, whole)
    assert counts(extract(work))[:2] == (len(PATHS) - kept, kept)
    assert {n: d for n, d in store_files(work.store).items() if not n.endswith(".part")} == whole
    assert counts(extract(work))[:2] == (0, len(PATHS))
    assert verify_store(work.store) == []
    return kept


def campaign(
    server: subprocess.Popen[str], found: Manifest, folder: Path, whole: dict[str, bytes], cases: int, seed: int
) -> list[int]:
    """Rows that were committed when the process died, by case."""
    draw, kept = random.Random(seed), []
    longest = 1.1 * min(run_killed(server, found, folder / f"whole-{n}", None) for n in range(2))
    for case in range(cases):
        cache = folder / f"cache-{case}"
        work = job(found, cache, outputs=BOTH)
        run_killed(server, found, cache, draw.uniform(0, longest))
        if draw.random() < 0.3:  # killed again while going on
            run_killed(server, found, cache, draw.uniform(0, longest))
        kept.append(check(work, whole))
        shutil.rmtree(cache, ignore_errors=True)
    return kept


def test_a_killed_extraction(
    server: subprocess.Popen[str], pictures: Manifest, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    campaign(server, pictures, tmp_path, whole, cases=6, seed=0)


@pytest.mark.soak
def test_many_killed_extractions(
    server: subprocess.Popen[str], pictures: Manifest, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    kept = campaign(server, pictures, tmp_path, whole, cases=200, seed=1)
    assert len(set(kept)) >= 4  # it died in every block, or behind the last


def test_interrupted_at_60_of_100_then_40_then_0(photos: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(layout, "default_block_rows", lambda *_: 4)
    monkeypatch.setattr("vlpipe.cache_store.opening.default_block_rows", lambda *_: 4)
    found = manifest(tmp_path / "m", photos, PATHS[:100], [])
    stopped = job(found, tmp_path / "cache", settings={"interrupt_after": 15}, batch_size=4)
    with pytest.raises(VlpipeError, match="60 of 100 image rows are kept"):
        extract(stopped)
    work = job(found, tmp_path / "cache", batch_size=4)
    assert [counts(extract(work))[0] for _ in range(3)] == [40, 0, 0]


@pytest.mark.parametrize("room", [0, 500, 1500, 3000, 6000, 9000])
def test_a_full_disk(
    room: int, pictures: Manifest, tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes so many more bytes of the store's own files."""
    work = job(pictures, tmp_path / "cache", outputs=BOTH)
    work.open()
    real, left = os.write, room

    def write(handle: int, data: Any) -> int:
        nonlocal left
        size = len(memoryview(data).cast("B"))
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real(handle, memoryview(data).cast("B")[: min(size, left)])  # a real one, too, first writes a part
        left -= done
        return done

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        with pytest.raises(VlpipeError, match="No space left on device") as caught:
            extract(work)
    assert caught.value.exit_code == 1
    assert check(work, whole) < len(PATHS)


def test_a_disk_that_is_full_while_a_chunk_is_healed(
    pictures: Manifest, tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its block stays committed: nothing more is lost than was."""
    work = job(pictures, tmp_path / "cache", outputs=BOTH)
    extract(work)
    (work.store / "tokens" / "c.5.0.0").write_bytes(b"damaged")

    def refuse(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        with pytest.raises(VlpipeError, match="No space left on device"):
            extract(work)
    assert int(open_features(work.store, "pooled").usable.sum()) == len(PATHS) - 1
    assert counts(extract(work))[:2] == (16, len(PATHS) - 16)
    assert store_files(work.store) == whole


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A file system of its own with these options, where the user may make one."""
    made = []

    def mount(options: str) -> Path:
        folder = tmp_path / "disk"
        folder.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("needs the right to mount a tmpfs")
        made.append(folder)
        return folder

    yield mount
    for folder in made:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("share", [0.4, 0.7, 0.9])
def test_a_disk_that_is_really_full(
    share: float, pictures: Manifest, tmp_path: Path, whole: dict[str, bytes], small_disk: Callable[[str], Path]
) -> None:
    """It holds a share of the store's pages."""
    pages = sum(-(-len(data) // 4096) for data in whole.values())
    disk = small_disk(f"size={round(share * pages) * 4}k")
    work = job(pictures, disk / "cache", outputs=BOTH)
    with pytest.raises((VlpipeError, OSError), match=r"No space left|needs"):
        extract(work)
    shutil.copytree(disk / "cache", tmp_path / "cache")
    check(job(pictures, tmp_path / "cache", outputs=BOTH), whole)


def test_a_folder_that_cannot_be_written(
    pictures: Manifest, tmp_path: Path, whole: dict[str, bytes], small_disk: Callable[[str], Path]
) -> None:
    disk = small_disk("size=8m")
    work = job(pictures, disk / "cache", outputs=BOTH, settings={"interrupt_after": 9})
    with pytest.raises(VlpipeError, match="interrupted"):
        extract(work)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    work = job(pictures, disk / "cache", outputs=BOTH)
    with pytest.raises(VlpipeError, match="Read-only file system") as caught:
        extract(work)
    assert caught.value.exit_code == 1
    assert committed(work, whole) == 128
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert check(work, whole) == 128


@pytest.mark.parametrize("which", ["cache", "store", "blocks"])
def test_a_folder_that_vanishes(which: str, pictures: Manifest, tmp_path: Path, whole: dict[str, bytes]) -> None:
    work = job(pictures, tmp_path / "cache", outputs=BOTH)
    gone = {"cache": work.cache, "store": work.store, "blocks": work.store / "status" / "blocks"}[which]
    real, batches = work.encoder.encode, iter(range(100))

    def encode(batch: Any, outputs: tuple[str, ...]) -> Any:
        if next(batches) == 6:  # in the second block
            gone.rename(tmp_path / "elsewhere")  # at once, though a block is being written
        return real(batch, outputs)

    work.encoder.encode = encode  # type: ignore[method-assign]
    with pytest.raises(VlpipeError, match="No such file or directory") as caught:
        extract(work)
    assert caught.value.exit_code == 1
    assert not gone.exists()
    fresh = job(pictures, tmp_path / "cache", outputs=BOTH)
    assert check(fresh, whole) == 0
