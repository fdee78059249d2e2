"""Stores that lie in odd places, and files of theirs that the system will not read."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from vlpipe.cache_store import group as groups
from vlpipe.cache_store import markers, stretch
from vlpipe.cache_store.errors import CacheReadError, CorruptCacheError
from vlpipe.cache_store.layout import ArraySpec
from vlpipe.cache_store.reader import open_features
from vlpipe.cache_store.stores import list_stores
from vlpipe.cache_store.verify import leftovers, verify_store

ODD = ("ünï", "a b", "a#b", "a%20b", "a[1]", "~a", "100%")
METADATA = ("zarr.json", "pooled/zarr.json", "status/zarr.json", "status/blocks/1.json", "status/rows.parquet")


@pytest.mark.parametrize("name", ODD)
def test_any_name_of_a_folder_will_do(sample: Any, full: Path, tmp_path: Path, name: str) -> None:
    store = full.rename(tmp_path / f"{name}.zarr")
    (tmp_path / f".{store.name}.0.part").mkdir()
    wanted = sample.values("pooled")[sample.statuses(failed=[9]) == 1].astype(np.float16)
    memory = fsspec.filesystem("memory")
    for path in filter(Path.is_file, store.rglob("*")):
        memory.pipe_file(f"/odd/{name}.zarr/{path.relative_to(store)}", path.read_bytes())
    try:
        for place in (store, str(store), f"memory://odd/{name}.zarr"):
            np.testing.assert_array_equal(open_features(place, "pooled").as_numpy(), wanted)
    finally:
        memory.rm("/odd", recursive=True)
    assert verify_store(store) == []
    assert leftovers(store) == [tmp_path / f".{store.name}.0.part"]


@pytest.mark.parametrize("strategy", ["mapped", "blocks"])
def test_another_working_folder_later(
    full: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, strategy: Any
) -> None:
    monkeypatch.chdir(full.parent)
    features = open_features(full.name, "tokens", strategy=strategy)
    lazy = features.as_dask()
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(features.as_numpy(), lazy.compute(scheduler="sync"))


def test_a_store_that_was_moved_to_another_disk_grows(
    sample: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link stands in its place; no rename goes from the one disk to the other."""
    first = {"pooled": ArraySpec((5,))}
    sample.fill(sample.open_writer(store, first), first)
    other = tmp_path / "other"
    other.mkdir()
    store.symlink_to(shutil.move(store, other / "moved.zarr"))
    rename = Path.rename

    def within_a_disk(path: Path, target: Path) -> Path:
        if path.parent.resolve().is_relative_to(other) != target.parent.resolve().is_relative_to(other):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return rename(path, target)

    monkeypatch.setattr(groups.Path, "rename", within_a_disk)
    assert sample.fill(sample.open_writer(store)) == [0, 1, 2, 3, 4]
    assert verify_store(store) == []
    assert sorted(path.name for path in other.iterdir()) == ["moved.zarr"]


@pytest.mark.parametrize("part", ["pooled", "status"])
def test_a_part_of_a_store_is_no_store(sample: Any, full: Path, part: str) -> None:
    with pytest.raises(CorruptCacheError, match=f"{part}/zarr.json' is missing, damaged, or not vlpipe's"):
        open_features(full / part)
    with pytest.raises(CorruptCacheError, match="not vlpipe's"):
        sample.open_writer(full / part)
    assert [damage.what for damage in verify_store(full / part)] == ["is missing or damaged, or not vlpipe's"]
    shutil.copy(full / "zarr.json", full / part / "zarr.json")
    assert [str(damage.file.relative_to(full)) for damage in verify_store(full)] == [f"{part}/zarr.json"]


@pytest.fixture(params=METADATA)
def refused(request: pytest.FixtureRequest, full: Path) -> Iterator[Path]:
    """A folder where a file should be: reading it is refused, also to root."""
    path = full / request.param
    path.rename(path.with_name("kept"))
    path.mkdir()
    yield path
    path.rmdir()


def test_what_the_system_refuses_is_one_line(refused: Path, full: Path) -> None:
    with pytest.raises(CacheReadError, match=f"cannot read '{refused}': Is a directory"):
        _ = open_features(full, "pooled").ids
    with pytest.raises(CacheReadError):
        verify_store(full)


def test_a_store_that_cannot_be_read_hides_no_other(full: Path) -> None:
    other = full.with_name("other.image.zarr")
    shutil.copytree(full, other)
    (full / "zarr.json").unlink()
    (full / "zarr.json").mkdir()
    found = {store.path: store.problem for store in list_stores(full.parent.parent)}
    assert found[other] == ""
    assert "Is a directory" in found[full]


@pytest.mark.parametrize("name", METADATA)
def test_a_bad_spot_of_the_disk_is_damage(full: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    read = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path == full / name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    with pytest.raises(CorruptCacheError):
        _ = open_features(full, "pooled").ids
    assert full / name in {damage.file for damage in verify_store(full)}


def test_a_marker_that_a_writer_takes_away_meanwhile(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed, then gone: the block is being written again."""
    glob = Path.glob

    def late(path: Path, pattern: str) -> list[Path]:
        found = list(glob(path, pattern))
        if pattern == "*.json":
            markers.marker_path(full, 2).unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "glob", late)
    assert {damage.file for damage in verify_store(full)} <= {markers.marker_path(full, 2)}


def test_no_addresses_left_for_mapping(sample: Any, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ulimit -v` does."""
    outputs = {"wide": ArraySpec((1024,), "float32")}
    monkeypatch.setitem(sample.OUTPUTS, "wide", outputs["wide"])
    sample.fill(sample.open_writer(store, outputs), outputs)

    def refuse(*_: Any) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(stretch, "_mapped", refuse)
    with pytest.raises(CacheReadError, match="strategy 'blocks'"):
        open_features(store, strategy="mapped")
    assert len(open_features(store, strategy="blocks").as_numpy()) == sample.ROWS
