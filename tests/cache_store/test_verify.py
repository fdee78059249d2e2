"""`verify_store` names what is damaged, all of it, and nothing else."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import shutil
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlpipe.cache_store import arrays
from vlpipe.cache_store.errors import CacheReadError, NotCachedError
from vlpipe.cache_store.group import Group
from vlpipe.cache_store.layout import ArraySpec, lock_path
from vlpipe.cache_store.losses import losses
from vlpipe.cache_store.metadata import sealed
from vlpipe.cache_store.reader import open_features
from vlpipe.cache_store.verify import Damage, leftovers, store_ids, stored_content, verify_store

WHOLE = range(37)
WHERE = [  # a file of each kind, the output that it is of, its rows
    ("zarr.json", "", WHOLE),
    ("pooled/zarr.json", "pooled", WHOLE),
    ("status/zarr.json", "", WHOLE),
    ("content_hash/zarr.json", "", WHOLE),
    ("status/rows.parquet", "", WHOLE),
    ("status/blocks/2.json", "", range(16, 24)),
    ("status/c.4", "", range(32, 37)),
    ("content_hash/c.0.0", "", range(8)),
    ("pooled/c.3.0", "pooled", range(24, 32)),
    ("tokens/c.4.0.0", "tokens", range(32, 37)),
    ("norm/c.1", "norm", range(8, 16)),
]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip_last(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-3] + bytes([data[-3] ^ 64]) + data[-2:])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def found(store: Path) -> list[tuple[str, str, range]]:
    return [(str(d.file.relative_to(store)), d.output, d.rows) for d in verify_store(store)]


def test_a_store_that_is_right(full: Path, contents: Any) -> None:
    before = contents(full)
    assert verify_store(full) == []
    assert contents(full) == before
    ids = store_ids(full)
    assert ids is not None
    assert len(ids) == 37


@pytest.mark.parametrize("damage", [cut, empty, Path.unlink])
@pytest.mark.parametrize(("name", "output", "rows"), WHERE)
def test_each_kind_of_file(
    full: Path, name: str, output: str, rows: range, damage: Callable[[Path], object]
) -> None:
    damage(full / name)
    assert found(full) == [(name, output, rows)]


def test_nothing_ends_it_early(full: Path) -> None:
    for name, _, _ in WHERE:
        if name not in ("pooled/zarr.json", "zarr.json"):
            flip_last(full / name) if "/c." in name or "parquet" in name else cut(full / name)
    names = {name for name, _, _ in WHERE} - {"zarr.json", "pooled/zarr.json"}
    hidden = {"status/c.4", "content_hash/c.0.0"}  # their metadata is damaged, too
    assert {name for name, _, _ in found(full)} == names - hidden
    cut(full / "zarr.json")
    told = {name for name, _, _ in found(full)}
    assert told == (names - hidden - {"status/rows.parquet"}) | {"zarr.json"}  # it is written anew with the group
    cut(full / "pooled" / "zarr.json")
    assert ("pooled/zarr.json", "pooled", WHOLE) in found(full)


def test_it_says_what_is_wrong(full: Path) -> None:
    flip_last(full / "pooled" / "c.3.0")
    cut(full / "norm" / "c.1")
    (full / "tokens" / "c.4.0.0").unlink()
    told = {damage.output: damage.what for damage in verify_store(full)}
    assert told["pooled"].startswith("has crc32c ")
    assert told["norm"] == "has 19 bytes, expected 20"
    assert told["tokens"] == "is missing"


def whole(store: Path) -> list[Any]:
    features = [open_features(store, name) for name in ("norm", "pooled", "tokens")]
    parts = [(f.ids, f.status.tobytes(), f.fingerprint, f.constants, f.content_digest) for f in features]
    return [*parts, *(f.take(np.flatnonzero(f.usable)).tobytes() for f in features)]


def campaign(full: Path, rounds: int, seed: int) -> tuple[int, int]:
    """Any byte of any file flipped, or the file cut: cases, and those that were noticed; others are harmless."""
    draw, right = random.Random(seed), whole(full)
    files = [path for path in sorted(full.rglob("*")) if path.is_file() and path.stat().st_size]
    noticed = 0
    for path in files:
        kept = path.read_bytes()
        for turn in range(rounds):
            data = bytearray(kept)
            if turn % 2:
                del data[draw.randrange(len(data)) :]
            else:
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(data)
            named = [damage.file for damage in verify_store(full)]
            if named:
                assert named == [path]
                noticed += 1
            else:
                assert whole(full) == right
        path.write_bytes(kept)
    return len(files) * rounds, noticed


def test_any_byte_counts(full: Path) -> None:
    cases, noticed = campaign(full, rounds=4, seed=0)
    assert cases > 100
    assert noticed > cases - 15  # blanks in JSON are many


@pytest.mark.soak
def test_every_byte_counts(full: Path) -> None:
    assert campaign(full, rounds=40, seed=1)[0] > 1000


def test_rows_that_are_not_there_yet_are_no_damage(sample: Any, store: Path) -> None:
    sample.fill(sample.open_writer(store, {"pooled": ArraySpec((5,))}), ["pooled"], blocks=[0, 2])
    sample.open_writer(store, {"norm": ArraySpec(())})
    assert verify_store(store) == []
    (store / "pooled" / "c.4.0.part").write_bytes(b"killed")
    beside = store.with_name(f".{store.name}.0.part")
    beside.mkdir()
    assert verify_store(store) == []
    assert leftovers(store) == [beside, store / "pooled" / "c.4.0.part"]


def test_a_block_that_is_being_written_is_no_damage(full: Path) -> None:
    (full / "status" / "blocks" / "2.json").unlink()
    (full / "pooled" / "c.2.0").unlink()
    with lock_path(full, 2).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert verify_store(full) == []
    assert found(full) == [("status/blocks/2.json", "", range(16, 24))]


def test_a_writer_at_work_is_no_damage(sample: Any, full: Path) -> None:
    """All blocks are written again and again while they are checked."""
    stop = threading.Event()

    def write() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            content = sample.hashes() ^ (turn % 2)
            sample.fill(sample.open_writer(full), blocks=range(5), content=content)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert [verify_store(full) for _ in range(15)] == [[]] * 15
    finally:
        stop.set()
        thread.join()


def test_a_marker_of_other_metadata(sample: Any, full: Path) -> None:
    """An output's metadata is whole, but of another dtype than what was committed."""
    other = full.with_name("other.zarr")
    sample.open_writer(other, {"pooled": ArraySpec((5,), "float32")})
    shutil.copy(other / "pooled" / "zarr.json", full / "pooled" / "zarr.json")
    assert found(full) == [("pooled/zarr.json", "pooled", range(n * 8, min(37, n * 8 + 8))) for n in range(5)]


def test_counts_that_are_not_those_of_the_status(sample: Any, full: Path) -> None:
    marker = Group.open(full).marker(full, 1)
    assert marker
    replace(marker, status={"ok": 8, "failed": 0, "cut": 0}).write(full)
    (damage,) = verify_store(full)
    assert damage.what.startswith("counts {'cut': 0, 'failed': 0, 'ok': 8}, the status has {'ok': 7, 'failed': 1")


def test_a_store_of_a_newer_format_and_none(full: Path, tmp_path: Path) -> None:
    root = json.loads((full / "zarr.json").read_text())
    own = {key: value for key, value in root["attributes"]["vlpipe"].items() if key != "checksum"}
    root["attributes"]["vlpipe"] = sealed({**own, "format": 2})
    (full / "zarr.json").write_text(json.dumps(root))
    (damage,) = verify_store(full)
    assert "has cache format 2" in damage.what
    assert damage.todo == "update vlpipe"
    with pytest.raises(NotCachedError, match="there is no store"):
        verify_store(tmp_path / "none.zarr")
    (tmp_path / "bare.zarr").mkdir()
    (damage,) = verify_store(tmp_path / "bare.zarr")
    assert damage.what == "is missing or damaged, or not vlpipe's"


def test_content_of_damaged_blocks_is_left_out(sample: Any, full: Path) -> None:
    flip_last(full / "status" / "c.1")
    usable = np.isin(np.arange(37) // 8, [0, 2, 3, 4])
    np.testing.assert_array_equal(stored_content(full), sample.hashes() * usable[:, None])


def test_memory_is_that_of_a_chunk(sample: Any, store: Path) -> None:
    rows = 4096
    wide = {"tokens": ArraySpec((64, 64), "float32")}  # 64 MiB, chunks of 4 MiB
    writer = sample.open_writer(store, wide, rows=rows, block_rows=256)
    for block in range(16):
        with writer.claim(block):
            ones = np.ones((256, 64, 64), np.float32)
            writer.write(block, {"tokens": ones}, np.ones(256, np.uint8), np.ones((256, 16), np.uint8))
    tracemalloc.start()
    try:
        assert verify_store(store) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * (4 << 20)


def test_losses_of_sizes_only(sample: Any, full: Path) -> None:
    writer = sample.open_writer(full)
    flip_last(full / "pooled" / "c.3.0")
    cut(full / "norm" / "c.1")
    flip_last(full / "status" / "c.0")
    thorough, quick = writer.lost(), writer.lost(thorough=False)
    assert {block: [loss.output for loss in some] for block, some in thorough.items()} == {
        0: ["status"], 1: ["norm"], 3: ["pooled"],
    }  # fmt: skip
    assert {block: [loss.output for loss in some] for block, some in quick.items()} == {0: ["status"], 1: ["norm"]}
    assert str(quick[1][0]) == "norm chunk 1 (rows 8 to 15) was missing or short"
    assert writer.lost([3], thorough=False) == {}


def test_a_disk_that_fails_at_one_spot_is_damage_and_a_refusal_is_not(
    full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, code = arrays.read_into, errno.EIO

    def failing(path: Path, *how: Any) -> int:
        if path.name == "c.3.0":
            raise OSError(code, os.strerror(code))
        return real(path, *how)

    monkeypatch.setattr(arrays, "read_into", failing)
    told = {(d.file.parent.name, d.what) for d in verify_store(full)}
    assert told == {(name, "cannot be read: the disk fails there") for name in ("pooled", "content_hash")}
    code = errno.EACCES
    with pytest.raises(CacheReadError, match="Permission denied"):
        verify_store(full)


def test_damage_is_plain_data(full: Path) -> None:
    cut(full / "norm" / "c.1")
    (damage,) = verify_store(full)
    assert damage == Damage(
        full / "norm" / "c.1",
        "norm",
        range(8, 16),
        "has 19 bytes, expected 20",
        "the same `vlpipe extract` encodes only these rows again",
    )
    assert list(losses({}, [])) == []
