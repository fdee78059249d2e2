"""Stores that are half made, damaged or being written give their whole rows only, and never a wrong one."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from toys.fresh import check_equal, check_fresh, manifest_of, work_done
from toys.mini import job, manifest

from vlpipe.cache_store import layout
from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.writer import StoreWriter
from vlpipe.extract.run import InterruptedRunError, extract

BOTH = ("pooled", "tokens")
OLD = [f"{n:03d}.png" for n in range(100)]


def test_only_committed_rows_of_a_half_made_store_are_taken(photos: Path, tmp_path: Path) -> None:
    half = job(manifest(tmp_path / "m", photos, OLD, []), tmp_path / "c", settings={"interrupt_after": 5})
    with pytest.raises(InterruptedRunError):
        extract(half)
    work = job(manifest(tmp_path / "n", photos, OLD[::-1], []), tmp_path / "c")
    assert work_done(extract(work)) == (36, 64, 0)
    assert work_done(extract(job(half.manifest, tmp_path / "c"))) == (0, 36, 64)
    check_fresh(work, tmp_path / "fresh")


def test_rows_are_copied_out_of_shards(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MANY_CHUNKS", 2)
    monkeypatch.setattr(layout, "CHUNK_BYTES", 128)
    donor = job(manifest(tmp_path / "m", photos, OLD, []), tmp_path / "c", outputs=BOTH)
    extract(donor)
    array = StoredArray.open(donor.store / "tokens")
    assert (array.chunk_rows, array.file_rows) == (4, 64)
    work = job(manifest(tmp_path / "n", photos, OLD[::-3], []), tmp_path / "c", outputs=BOTH)
    assert work_done(extract(work)) == (0, 34, 0)
    check_fresh(work, tmp_path / "fresh")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize("damage", [flip, cut_short, Path.unlink], ids=["flip", "cut", "gone"])
@pytest.mark.parametrize("folder", ["pooled", "tokens", "status", "content_hash"])
def test_a_damaged_store_gives_nothing_wrong(
    damage: Callable[[Path], None], folder: str, photos: Path, tmp_path: Path
) -> None:
    """Every file of the donor in turn, before the first block; rows of whole blocks are still taken."""
    donor = job(manifest(tmp_path / "m", photos, OLD, []), tmp_path / "kept", outputs=BOTH)
    extract(donor)
    files = [p for p in (donor.store / folder).rglob("*") if p.is_file() and "locks" not in p.parts]
    assert len(files) >= 3
    found = manifest(tmp_path / "n", photos, OLD[::-1], [])
    fresh = job(found, tmp_path / "fresh", outputs=BOTH)
    extract(fresh)
    for number, path in enumerate([*files, donor.store / "zarr.json"]):
        cache = tmp_path / f"c{number}"
        shutil.copytree(tmp_path / "kept", cache)
        damage(cache / path.relative_to(tmp_path / "kept"))
        work = job(found, cache, outputs=BOTH)
        summary = extract(work)
        assert summary.ok == summary.encoded + summary.copied == 100
        if path.name.startswith("c.") or "blocks" in path.parts:
            assert summary.encoded in (36, 64)
        check_equal(work, fresh)


def test_a_donor_that_is_written_again_meanwhile_gives_nothing_wrong(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its block is replaced after it was looked at and before it is copied from."""
    donor = job(manifest_of(tmp_path, photos, list(range(64))), tmp_path / "c")
    extract(donor)
    work = job(manifest(tmp_path / "n", photos, OLD[:64], []), tmp_path / "c")
    claim, done = StoreWriter.claim, []

    def claim_late(writer: StoreWriter, block: int) -> object:
        if writer.path == work.store and not done:
            done.append(1)
            shutil.copy(photos / "150.png", donor.manifest.image_root / "0.png")
            extract(dataclasses.replace(donor))
        return claim(writer, block)

    monkeypatch.setattr(StoreWriter, "claim", claim_late)
    extract(work)
    assert done
    check_fresh(work, tmp_path / "fresh")


def test_a_foreign_folder_beside_is_no_donor(photos: Path, tmp_path: Path) -> None:
    found = manifest(tmp_path / "m", photos, OLD, [])
    work = job(found, tmp_path / "c")
    for name in ("a", "b", "c"):
        (tmp_path / "c" / name / work.store.name).parent.mkdir(parents=True)
    (tmp_path / "c" / "a" / work.store.name).write_text("a file")
    (tmp_path / "c" / "b" / work.store.name).mkdir()
    (tmp_path / "c" / "c" / work.store.name).symlink_to(tmp_path / "nowhere")
    assert work_done(extract(work)) == (100, 0, 0)


def test_two_manifests_encoded_at_the_same_time_take_from_each_other_what_is_there(
    photos: Path, tmp_path: Path
) -> None:
    paths = [f"{n:03d}.png" for n in range(200)]
    works = [
        job(manifest(tmp_path / name, photos, rows, []), tmp_path / "c", outputs=BOTH)
        for name, rows in (("m", paths), ("n", paths[:10:-1]))
    ]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(extract, works))
    assert [summary.encoded + summary.copied for summary in done] == [200, 189]
    for number, work in enumerate(works):
        check_fresh(work, tmp_path / "fresh" / str(number))
