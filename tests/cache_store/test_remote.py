"""Stores read through a URL: the same rows as from the folder, and one line for whatever goes wrong."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem
from moto.server import ThreadedMotoServer

from vlpipe.cache_store import layout
from vlpipe.cache_store.commands import show
from vlpipe.cache_store.errors import CacheReadError, CorruptCacheError, NotCachedError, StaleCacheError
from vlpipe.cache_store.layout import ArraySpec, store_path
from vlpipe.cache_store.places import RemotePlace, place_of, read_into
from vlpipe.cache_store.reader import open_features
from vlpipe.cache_store.stores import store_info
from vlpipe.foundation.errors import UsageError

NAMES = ["pooled", "tokens", "norm"]
USABLE = np.delete(np.arange(37), 9)
REMOTE = pytest.mark.parametrize("strategy", ["auto", "resident", "blocks"])


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    files = fsspec.filesystem("memory")
    yield files
    files.rm("/", recursive=True)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "sharded"])
def folder(sample: Any, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The sample with row 9 failed, in chunks of a block or in shards."""
    path: Path = tmp_path_factory.mktemp("local") / "tiny.image.zarr"
    with pytest.MonkeyPatch.context() as patched:
        if request.param:
            patched.setattr(layout, "CHUNK_BYTES", 48)
            patched.setattr(layout, "MANY_CHUNKS", 2)
        sample.fill(sample.open_writer(path), status=sample.statuses(failed=[9], cut=[20]))
    return path


@pytest.fixture
def url(folder: Path, memory: MemoryFileSystem) -> str:
    memory.put(str(folder), "/cache/m/tiny.image.zarr", recursive=True)
    return "memory://cache/m/tiny.image.zarr"


@REMOTE
def test_all_of_a_store_is_the_same(folder: Path, url: str, strategy: Any) -> None:
    for name in NAMES:
        local, remote = open_features(folder, name), open_features(url, name, strategy=strategy)
        assert (remote.ids, remote.fingerprint, remote.manifest) == (local.ids, local.fingerprint, local.manifest)
        np.testing.assert_array_equal(remote.status, local.status)
        np.testing.assert_array_equal(remote.take(USABLE[::-1]), local.take(USABLE[::-1]), strict=True)
        assert remote.content_digest == local.content_digest


def test_batches_come_in_the_same_order(folder: Path, url: str) -> None:
    local, remote = open_features(folder, "tokens"), open_features(url, "tokens", strategy="blocks")
    pairs = zip(local.batches(5, shuffle=True), remote.batches(5, shuffle=True), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_array_equal(ours.positions, theirs.positions)
        np.testing.assert_array_equal(ours.rows, theirs.rows)


def test_what_is_remote_is_not_mapped(url: str) -> None:
    assert open_features(url, "pooled", memory_budget=200).strategy == "blocks"
    with pytest.raises(UsageError, match="cannot be mapped"):
        open_features(url, "pooled", strategy="mapped")


def test_what_show_tells(folder: Path, url: str) -> None:
    local, remote = store_info(folder), store_info(url)
    assert str(remote.path) == "memory:///cache/m/tiny.image.zarr"
    for field in ("rows", "ok", "failed", "cut", "absent", "bytes", "outputs", "encoder", "constants"):
        assert getattr(remote, field) == getattr(local, field)


def test_show_takes_a_url(url: str) -> None:
    result = CliRunner().invoke(show, [url, "--json"], catch_exceptions=False)
    record = json.loads(result.output)
    assert (record["path"], record["rows"]) == ("memory:///cache/m/tiny.image.zarr", 37)


def test_a_file_url_is_a_folder(folder: Path) -> None:
    assert open_features(folder.as_uri(), "pooled", strategy="mapped").path == folder


def change(files: MemoryFileSystem, path: str, how: str) -> None:
    data = bytearray(files.cat_file(path))
    data[3] ^= 1
    files.rm(path)
    if how != "remove":
        files.pipe_file(path, bytes(data) if how == "flip" else bytes(data[:3]))


@pytest.mark.parametrize("how", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("name", ["pooled/c.2.0", "status/c.2", "status/rows.parquet", "status/zarr.json"])
def test_damage_is_told_with_its_file(memory: MemoryFileSystem, url: str, name: str, how: str) -> None:
    change(memory, f"/cache/m/tiny.image.zarr/{name}", how)
    with pytest.raises(CorruptCacheError, match=rf"'memory:///cache/m/tiny.image.zarr/{name}'") as told:
        open_features(url, "pooled").positions(["set a/é 000.JPG"])
    assert name != "pooled/c.2.0" or "rows 16 to " in str(told.value)
    assert "\n" not in str(told.value)


def test_a_block_that_was_uploaded_again(sample: Any, full: Path, memory: MemoryFileSystem) -> None:
    url = "memory://cache/a.zarr"
    memory.put(str(full), "/cache/a.zarr", recursive=True)
    features = open_features(url, "pooled", strategy="blocks")
    writer = sample.open_writer(full)
    with writer.claim(1):
        rows = {name: sample.values(name)[8:16] + 1 for name in NAMES}
        writer.write(1, rows, sample.statuses()[8:16], sample.hashes()[8:16])
    memory.put(f"{full}/", "/cache/a.zarr/", recursive=True)
    with pytest.raises(StaleCacheError, match="written again since it was opened"):
        features.take(np.array([8]))
    np.testing.assert_array_equal(
        open_features(url, "pooled").take(np.arange(8, 16)), (sample.values("pooled")[8:16] + 1).astype("f2")
    )


def test_small_files_are_asked_for_at_the_same_time(
    sample: Any, store: Path, memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """150 blocks, each of a marker and a status: 300 requests, which would be one after the other."""
    sample.fill(sample.open_writer(store, {"norm": ArraySpec(())}, rows=150, block_rows=1), ["norm"], rows=150)
    memory.put(str(store), "/many.zarr", recursive=True)
    real, busy, most, lock = MemoryFileSystem.cat_file, 0, 0, threading.Lock()

    def slow(*given: Any, **options: Any) -> Any:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        time.sleep(0.01)
        with lock:
            busy -= 1
        return real(*given, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", slow)
    assert open_features("memory://many.zarr", "norm", strategy="blocks").usable.all()
    assert most > 16


def test_bad_addresses(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotCachedError, match=r"there is no store 'memory:///cache/none.zarr'"):
        open_features("memory://cache/none.zarr", "pooled")
    with pytest.raises(UsageError, match="cannot read 'nothing://a/b': Protocol not known"):
        open_features("nothing://a/b", "pooled")
    with pytest.raises(UsageError, match="is a URL as a Path, which loses a slash: give it as text"):
        open_features(Path(url), "pooled")
    with pytest.raises(UsageError, match="expected a URL"):
        open_features(folder, "pooled", storage_options={"anon": True})

    def missing(*_: Any, **__: Any) -> Any:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(UsageError, match=r"'s3://a/b' needs another library: pip install 'vlpipe\[remote\]'"):
        open_features("s3://a/b", "pooled")
    with pytest.raises(UsageError, match="'gs://a/b' needs another library: Install s3fs to"):
        open_features("gs://a/b", "pooled")


@pytest.mark.parametrize("place", ["s3://bucket/a.zarr", Path("s3://bucket/a.zarr"), Path("memory:///a.zarr")])
def test_writing_to_a_url_is_refused(
    sample: Any, place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="write the cache to a local one and upload it with your own tools"):
        sample.open_writer(place)
    with pytest.raises(UsageError, match="upload"):
        store_path(Path(place), "m" * 64, "hf:tiny", "image")
    assert not list(tmp_path.iterdir())


def test_places(memory: MemoryFileSystem, tmp_path: Path) -> None:
    memory.pipe_file("/a/b.bin", bytes(range(10)))
    (tmp_path / "b.bin").write_bytes(bytes(range(10)))
    remote = place_of("memory://a/")
    assert isinstance(remote, RemotePlace)
    assert ((remote / "b.bin").parent, (remote / "b.bin").name) == (remote, "b.bin")
    assert [place.name for place in remote.glob("*.bin")] == ["b.bin"]
    for place in (remote / "b.bin", tmp_path / "b.bin"):
        for start, found in ((0, 7), (3, 7), (5, 5), (10, 0), (12, 0)):
            first, second = bytearray(3), bytearray(4)
            seen: list[memoryview] = []
            pieces, rest = [memoryview(first)], memoryview(second)
            assert (
                read_into(place, start, pieces, rest, lambda piece, seen=seen: seen.append(bytes(piece))) == found
            )
            assert (first + second)[:found] == bytes(range(start, start + found))
            assert seen == ([bytes(first)] if found >= 3 else [])  # whole pieces only


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """An S3 server with an empty bucket; the options that reach it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://{host}:{port}"}
    fsspec.filesystem("s3", **options).mkdir("bucket")
    yield options
    server.stop()


@pytest.fixture
def on_s3(folder: Path, s3: dict[str, Any]) -> Iterator[str]:
    files = fsspec.filesystem("s3", **s3)
    files.put(str(folder), "bucket/cache/tiny.zarr", recursive=True)
    yield "s3://bucket/cache/tiny.zarr"
    files.rm("bucket/cache", recursive=True)


def test_s3(sample: Any, folder: Path, on_s3: str, s3: dict[str, Any]) -> None:
    for name in NAMES:
        wanted = open_features(folder, name).take(USABLE)
        for strategy in ("resident", "blocks"):
            remote = open_features(on_s3, name, strategy=strategy, storage_options=s3)  # type: ignore[arg-type]
            np.testing.assert_array_equal(remote.take(USABLE), wanted, strict=True)
    assert store_info(on_s3, s3).bytes == store_info(folder).bytes


def test_damage_on_s3(on_s3: str, s3: dict[str, Any]) -> None:
    files = fsspec.filesystem("s3", **s3)
    features = open_features(on_s3, "pooled", strategy="blocks", storage_options=s3)
    files.pipe_file(f"{on_s3}/pooled/c.1.0", b"abc")
    files.rm(f"{on_s3}/pooled/c.2.0")
    for row, told in ((15, "c.1.0' has .* bytes, expected"), (17, "c.2.0' is missing; rows 16 to")):
        with pytest.raises(CorruptCacheError, match=f"'{on_s3}/pooled/{told}.*upload the store again"):
            features.take(np.array([row]))
    files.rm(f"{on_s3}/status/blocks/0.json")
    assert not open_features(on_s3, "norm", storage_options=s3).usable[:8].any()


def test_what_s3_refuses_is_one_line(s3: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotCachedError, match=r"there is no store 's3://nobucket/a.zarr'"):
        open_features("s3://nobucket/a.zarr", "pooled", storage_options=s3)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    bare = {"endpoint_url": s3["endpoint_url"]}
    with pytest.raises(CacheReadError, match=r"cannot read 's3://bucket/a\.zarr': .*credentials") as told:
        open_features("s3://bucket/a.zarr", "pooled", storage_options=bare)
    assert "\n" not in str(told.value)
    with pytest.raises(CacheReadError, match=r"cannot read 's3://bucket/a\.zarr'"):
        open_features("s3://bucket/a.zarr", "pooled", storage_options={**s3, "no_such_option": 1})


def test_a_spawned_process_reads_s3(folder: Path, on_s3: str, s3: dict[str, Any]) -> None:
    features = open_features(on_s3, "pooled", strategy="blocks", storage_options=s3)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(features.take, (np.array([30, 2]),))
    np.testing.assert_array_equal(found, open_features(folder, "pooled").take(np.array([30, 2])))
