"""What `vlpipe cache gc` finds in a cache: only what nothing refers to, and never what is in use."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.errors import CacheWriteError, NotCachedError
from vlpipe.cache_store.garbage import QUIET, Swept, sweep
from vlpipe.cache_store.layout import ArraySpec, lock_path, marker_path, rows_path
from vlpipe.cache_store.locks import exclusive
from vlpipe.cache_store.reader import open_features

HEX = "0123456789abcdef" * 2


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def store(cache: Path) -> Path:
    """Where the sample goes; a manifest's folder has twelve hexadecimal digits."""
    return cache / "a1b2c3d4e5f6" / "tiny.image.zarr"


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
    }


def old(path: Path) -> Path:
    """As if last written two hours ago."""
    for part in [path, *path.rglob("*")]:
        os.utime(part, (time.time() - 2 * QUIET,) * 2, follow_symlinks=False)
    return path


def names(swept: Swept) -> list[str]:
    return sorted(item.path.name for item in swept.deleted)


def test_a_whole_store_is_left_to_the_byte(full: Path, cache: Path) -> None:
    before = snapshot(cache)
    assert sweep(cache) == Swept([], [])
    assert sweep(cache, lambda *_: True) == Swept([], [])
    assert snapshot(cache) == before


def leave_garbage(folder: Path) -> dict[str, int]:
    """Everything that a killed writer may leave beside stores; names and bytes."""
    unmade = folder / f".gone.image.zarr.{HEX}.part"
    (unmade / "status").mkdir(parents=True)
    (unmade / "status" / "zarr.json").write_bytes(b"12345")
    (folder / ".tiny.image.failures.jsonl.4711.part").write_bytes(b"123")
    (folder / "gone.text.failures.jsonl").write_bytes(b"1234567")
    for path in folder.glob(".*"):
        old(path)
    return {unmade.name: 5, ".tiny.image.failures.jsonl.4711.part": 3, "gone.text.failures.jsonl": 7}


def test_leftovers_beside_stores(full: Path, cache: Path) -> None:
    (full.parent / "tiny.image.failures.jsonl").write_bytes(b"{}\n")
    before = snapshot(cache)
    garbage = leave_garbage(full.parent)
    with_garbage = snapshot(cache)
    dry = sweep(cache, dry_run=True)
    assert snapshot(cache) == with_garbage
    assert {item.path.name: item.bytes for item in dry.deleted} == garbage
    assert dry.bytes == 15
    assert sweep(cache) == dry
    assert snapshot(cache) == before
    assert sweep(cache) == Swept([], [])


def test_what_a_living_writer_may_be_making_stays(full: Path, cache: Path) -> None:
    leave_garbage(full.parent)
    for path in full.parent.glob(".*"):
        os.utime(path)
    swept = sweep(cache)
    assert names(swept) == ["gone.text.failures.jsonl"]
    assert [item.why for item in swept.kept] == [
        "is not finished, and was written 0 minutes ago: its writer may be at work"
    ] * 2


def files_of(store: Path, output: str, block: range) -> set[Path]:
    array = StoredArray.open(store / output)
    return {Path(str(array.path(chunk))) for chunk in array.chunks(block)}


def test_chunks_that_were_never_committed(sample: Any, store: Path, cache: Path) -> None:
    writer = sample.open_writer(store)
    sample.fill(writer, blocks=[0, 2])
    committed = snapshot(store)
    sample.fill(writer, blocks=[1])
    marker_path(store, 1).unlink()  # as if killed just before the commit
    wanted = set().union(
        *(files_of(store, name, range(8, 16)) for name in ("pooled", "tokens", "norm", "status", "content_hash"))
    )
    part = next(iter(files_of(store, "pooled", range(16, 24))))
    part.with_name(f"{part.name}.part").write_bytes(b"half")
    dead_marker = marker_path(store, 1).with_name("1.json.part")
    dead_marker.write_bytes(b"{")
    with exclusive(lock_path(store, 1)), exclusive(lock_path(store, 2)):
        assert sweep(cache).deleted == []
    swept = sweep(cache)
    assert {item.path for item in swept.deleted} == {*wanted, part.with_name(f"{part.name}.part"), dead_marker}
    left = {name: data for name, data in snapshot(store).items() if data is not None}
    assert left == {name: data for name, data in committed.items() if data is not None} | {"status/locks/1": b""}
    sample.fill(writer)
    np.testing.assert_array_equal(
        open_features(store, "pooled").take(np.arange(37)), sample.values("pooled").astype(np.float16)
    )


def test_an_output_that_was_not_committed_for_a_block(sample: Any, store: Path, cache: Path) -> None:
    pooled = sample.open_writer(store, {"pooled": ArraySpec((5,))})
    sample.fill(pooled, ["pooled"])
    marker = marker_path(store, 3).read_bytes()
    sample.fill(sample.open_writer(store, {"norm": ArraySpec(())}), ["norm"])
    marker_path(store, 3).write_bytes(marker)  # killed before this block's marker was written anew
    assert {item.path for item in sweep(cache).deleted} == files_of(store, "norm", range(24, 32))
    assert open_features(store, "pooled").usable.all()
    assert open_features(store, "norm").usable.sum() == 37 - 8


def test_unfinished_metadata(full: Path, cache: Path) -> None:
    part = rows_path(full).with_name("rows.parquet.part")
    part.write_bytes(b"x")
    assert names(sweep(cache)) == []
    old(part)
    assert names(sweep(cache)) == ["rows.parquet.part"]


def test_a_damaged_marker_proves_nothing(full: Path, cache: Path) -> None:
    marker_path(full, 1).write_bytes(b"{")
    before = snapshot(full)
    (kept,) = sweep(cache).kept
    assert "damaged" in kept.why
    assert snapshot(full) == before


def test_a_store_that_nothing_refers_to(sample: Any, full: Path, cache: Path) -> None:
    failures = full.parent / "tiny.image.failures.jsonl"
    failures.write_bytes(b"{}\n")
    other = full.parent / "other.image.zarr"
    sample.fill(sample.open_writer(other))
    before = snapshot(other)
    size = sum(path.stat().st_size for path in full.rglob("*") if path.is_file())
    asked = []

    def wanted(group: Any, path: Path) -> bool:
        asked.append((group.encoder, path))
        return path == other

    dry = sweep(cache, wanted, dry_run=True)
    assert [(item.path, item.bytes) for item in dry.deleted] == [(full, size), (failures, 3)]
    assert full.exists()
    assert asked == [("hf:tiny", other), ("hf:tiny", full)]
    features = open_features(full, "tokens", strategy="mapped")
    first = features.take(np.arange(37)[features.usable])
    assert sweep(cache, wanted) == dry
    assert [path.name for path in full.parent.iterdir()] == ["other.image.zarr"]
    assert snapshot(other) == before
    np.testing.assert_array_equal(features.take(np.arange(37)[features.usable]), first)  # mapped, so still there
    sweep(cache, lambda *_: False)
    assert list(cache.iterdir()) == []  # the manifest's empty folder goes, too


def test_a_store_that_is_being_written_stays(sample: Any, store: Path, cache: Path) -> None:
    command = [sys.executable, str(sample.SCRIPT), str(store), "0", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        while process.poll() is None and not marker_path(store, 3).exists():  # block 4 is the last
            if cache.exists():
                sweep(cache)
                sweep(cache, lambda *_: False)
        assert process.wait() == 0
    assert open_features(store, "pooled").usable.all()


def test_a_store_with_a_locked_block_stays(full: Path, cache: Path) -> None:
    with exclusive(lock_path(full, 2)) as held:
        assert held
        swept = sweep(cache, lambda *_: False)
        assert (swept.deleted, [item.why for item in swept.kept]) == ([], ["is being written"])
    assert names(sweep(cache, lambda *_: False)) == ["tiny.image.zarr"]


def test_half_a_store_stays_until_it_is_quiet(full: Path, cache: Path) -> None:
    marker_path(full, 2).unlink()
    swept = sweep(cache, lambda *_: False)
    assert (swept.deleted, [item.path for item in swept.kept]) == ([], [full])
    old(full)
    assert names(sweep(cache, lambda *_: False)) == ["tiny.image.zarr"]


def test_what_is_not_ours_stays(full: Path, cache: Path, tmp_path: Path) -> None:
    folder = full.parent
    foreign = folder / "foreign.image.zarr"
    foreign.mkdir()
    (foreign / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    (folder / "notes.part").write_text("mine")
    (folder / "mine.failures.jsonl").write_text("mine")  # of no side: not a store's
    elsewhere = cache / "thesis"
    elsewhere.mkdir()
    leave_garbage(elsewhere)  # not a manifest's folder
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    links: dict[Path, Path] = {
        folder / "linked.image.zarr": full,
        cache / "0123456789ab": outside,
        folder / f".x.image.zarr.{HEX}.part": outside,
    }
    for link, target in links.items():
        link.symlink_to(target, target_is_directory=True)
    before = {name: data for name, data in snapshot(tmp_path).items() if "tiny.image" not in name}
    swept = sweep(cache, lambda *_: False)
    assert names(swept) == ["tiny.image.zarr"]
    assert {item.path for item in swept.kept} == {foreign, *links}
    after = snapshot(tmp_path)
    assert {name: data for name, data in after.items() if "tiny.image" not in name} == before


def test_links_inside_a_store_are_not_followed(sample: Any, store: Path, cache: Path, tmp_path: Path) -> None:
    writer = sample.open_writer(store)
    sample.fill(writer)
    moved = tmp_path / "bigger-disk"
    (store / "tokens").rename(moved)
    (store / "tokens").symlink_to(moved, target_is_directory=True)
    marker_path(store, 1).unlink()
    before = snapshot(moved)
    sweep(cache)
    assert snapshot(moved) == before
    old(store)
    sweep(cache, lambda *_: False)
    assert snapshot(moved) == before
    assert not store.exists()


def test_a_sweep_that_was_killed_is_finished_by_the_next(
    full: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop: Callable[..., None] = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", stop)
        with pytest.raises(KeyboardInterrupt):
            sweep(cache, lambda *_: False)
    assert not full.exists()
    (half,) = full.parent.iterdir()
    old(half)
    assert names(sweep(cache)) == [half.name]
    assert list(cache.iterdir()) == []


def test_a_folder_that_nothing_can_be_deleted_from(
    full: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_garbage(full.parent)

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    before = snapshot(cache)
    for name in ("unlink", "rename"):
        monkeypatch.setattr(Path, name, refuse)
    monkeypatch.setattr(shutil, "rmtree", refuse)
    for wanted in (None, lambda *_: False):
        with pytest.raises(CacheWriteError, match=r"cannot delete in .*: Read-only file system; .* --dry-run"):
            sweep(cache, wanted)
    assert snapshot(cache) == before


def test_no_cache_folder(tmp_path: Path) -> None:
    with pytest.raises(NotCachedError, match="there is no cache folder"):
        sweep(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert sweep(tmp_path / "empty") == Swept([], [])
