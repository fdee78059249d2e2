"""Whatever is damaged in a store: `verify` names it, and the same extraction encodes only these rows."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from toys.mini import counts, job, manifest, store_files

from vlpipe.cache_store import layout, mending
from vlpipe.cache_store.errors import CorruptCacheError, StaleCacheError
from vlpipe.cache_store.reader import open_features
from vlpipe.cache_store.verify import Damage, verify_store
from vlpipe.extract.job import Job
from vlpipe.extract.load import load_encoder
from vlpipe.extract.run import InterruptedRunError, extract
from vlpipe.manifests.manifest import Manifest

PATHS = [*(f"{n:03d}.png" for n in range(148)), "empty.jpg", "cut.png"]  # blocks of 64, 64, 22; two rows fail
BOTH = ("pooled", "tokens")


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of 64 rows is one chunk of `pooled` and four of `tokens`."""
    monkeypatch.setattr(layout, "CHUNK_BYTES", 384)


@pytest.fixture(scope="module")
def made(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a manifest and a whole cache."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(layout, "CHUNK_BYTES", 384)
        assert counts(extract(job(manifest(folder / "m", photos, PATHS, []), folder / "cache", outputs=BOTH)))[0]
    return folder


@pytest.fixture
def work(made: Path, tmp_path: Path) -> Job:
    """A job over a copy of that cache."""
    shutil.copytree(made / "cache", tmp_path / "cache")
    return job(Manifest.open(made / "m"), tmp_path / "cache", outputs=BOTH)


def files(store: Path) -> dict[str, bytes]:
    """Every file, parsed where the spelling of JSON does not matter, but for when the store was made."""
    found = store_files(store)
    root = json.loads((store / "zarr.json").read_bytes())
    del root["attributes"]["vlpipe"]["created"], root["attributes"]["vlpipe"]["checksum"]
    return {**found, "zarr.json": json.dumps(root).encode()}


def named(damage: list[Damage]) -> set[int]:
    return {row for found in damage for row in found.rows}


def flip(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def cut(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size)])


def remove(path: Path, draw: random.Random) -> None:
    path.unlink()


def lengthen(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes() + draw.randbytes(draw.randint(1, 9)))


KINDS = (flip, cut, remove, lengthen)


def everything(store: Path) -> list[Any]:
    """All that readers see."""
    sets = [open_features(store, name) for name in BOTH]
    rows = [f.take(np.flatnonzero(f.usable)).tobytes() for f in sets]
    return [*rows, *([f.ids, f.status.tobytes(), f.fingerprint, f.constants, f.content_digest] for f in sets)]


def check_case(work: Job, whole: list[Any], before: dict[str, bytes]) -> bool:
    """Verify, heal, verify; says whether the damage was noticed, else it is proved to be harmless."""
    damage = verify_store(work.store)
    if not damage:
        assert everything(work.store) == whole
    summary = extract(work)
    assert summary.encoded + summary.copied <= len(named(damage)), damage
    assert verify_store(work.store) == []
    if damage:
        assert files(work.store) == before
    assert everything(work.store) == whole
    assert counts(extract(work))[:2] == (0, 150)
    return bool(damage)


def campaign(work: Job, kinds: int, seed: int) -> tuple[int, int]:
    """Each file of the store damaged in so many ways; returns the cases, and those that were noticed."""
    draw = random.Random(seed)
    whole, before, kept = everything(work.store), files(work.store), work.store.with_name("kept")
    shutil.copytree(work.store, kept)
    noticed = []
    for path in sorted(path.relative_to(kept) for path in kept.rglob("*") if path.is_file()):
        for kind in (remove, lengthen) if "locks" in path.parts else draw.sample(KINDS * 6, kinds):
            kind(work.store / path, draw)
            noticed.append(check_case(work, whole, before))
            (work.store / path).write_bytes((kept / path).read_bytes())
    return len(noticed), sum(noticed)


@pytest.mark.parametrize("sharded", [False, True])
def test_any_damage_is_healed(work: Job, sharded: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if sharded:
        monkeypatch.setattr(layout, "MANY_CHUNKS", 4)
        work = dataclasses.replace(work, cache=tmp_path / "sharded")
        extract(work)
        assert len(list((work.store / "tokens").glob("c.*"))) == 3
    cases, noticed = campaign(work, kinds=2, seed=0)
    assert cases > 40
    assert noticed > cases - 15  # locks, and blanks in JSON


@pytest.mark.soak
def test_much_damage_is_healed(work: Job) -> None:
    assert campaign(work, kinds=24, seed=1)[0] >= 500


def damage_several(work: Job, cases: int, seed: int) -> None:
    draw = random.Random(seed)
    whole, before, kept = everything(work.store), files(work.store), work.store.with_name("kept")
    shutil.copytree(work.store, kept)
    paths = [path for path in sorted(kept.rglob("*")) if path.is_file() and "locks" not in path.parts]
    for _ in range(cases):
        for path in draw.sample(paths, draw.randint(2, 5)):
            draw.choice(KINDS)(work.store / path.relative_to(kept), draw)
        check_case(work, whole, before)
        shutil.rmtree(work.store)
        shutil.copytree(kept, work.store)


def test_several_files_at_once_are_healed(work: Job) -> None:
    damage_several(work, cases=15, seed=2)


@pytest.mark.soak
def test_many_files_at_once_are_healed(work: Job) -> None:
    damage_several(work, cases=400, seed=3)


def test_one_chunk_of_a_block_costs_its_rows_of_its_output(work: Job) -> None:
    before = store_files(work.store)
    flip(work.store / "tokens" / "c.5.0.0", random.Random(0))
    (damage,) = verify_store(work.store)
    assert (damage.output, damage.rows, damage.what[:11]) == ("tokens", range(80, 96), "has crc32c ")
    summary = extract(work)
    assert counts(summary)[0] == sum(work.encoder.batches) == 16  # type: ignore[attr-defined]
    assert summary.healed[0].startswith("tokens chunk 5 (rows 80 to 95) had crc32c ")
    assert len(summary.healed) == 1
    assert store_files(work.store) == before


@pytest.mark.parametrize("name", ["status/c.1", "content_hash/c.1.0", "status/blocks/1.json"])
def test_a_damaged_book_or_marker_costs_its_block(work: Job, name: str) -> None:
    before = store_files(work.store)
    cut(work.store / name, random.Random(0))
    assert named(verify_store(work.store)) == {*range(64, 128)}
    summary = extract(work)
    assert counts(summary)[0] == 64
    assert "(rows 64 to 127)" in summary.healed[0]
    assert store_files(work.store) == before


@pytest.mark.parametrize("name", ["", "status", "content_hash", "pooled", "tokens"])
def test_metadata_is_written_anew_without_encoding(work: Job, name: str) -> None:
    before = files(work.store)
    (work.store / name / "zarr.json").unlink()
    (damage,) = verify_store(work.store)
    assert damage.file == work.store / name / "zarr.json"
    assert damage.rows == range(150)
    summary = extract(work)
    assert counts(summary)[0] == 0
    assert "was damaged: written anew from what is asked, no row is lost" in summary.healed[0]
    assert files(work.store) == before


def test_metadata_is_not_written_anew_for_another_encoder(work: Job) -> None:
    (work.store / "zarr.json").write_text("{")
    foreign = dataclasses.replace(work, encoder=load_encoder("toys.toy:Toy:other", {}))
    with pytest.raises(StaleCacheError, match="weights"):
        extract(foreign)
    (work.store / "tokens" / "zarr.json").write_text("{")
    with pytest.raises(StaleCacheError, match=r"pooled\.weights"):
        extract(foreign)
    assert (work.store / "zarr.json").read_text() == (work.store / "tokens" / "zarr.json").read_text() == "{"
    assert counts(extract(work))[0] == 0


def test_a_group_is_not_written_anew_for_an_output_that_is_not_there(work: Job) -> None:
    shutil.rmtree(work.store / "tokens")
    (work.store / "zarr.json").unlink()
    with pytest.raises(CorruptCacheError, match="writes the file anew"):
        extract(dataclasses.replace(work, outputs=("tokens",)))


def test_an_output_of_unknown_metadata_is_encoded_as_asked(work: Job) -> None:
    pooled = (work.store / "pooled" / "c.0.0").read_bytes()
    (work.store / "tokens" / "zarr.json").unlink()
    wide = dataclasses.replace(work, outputs=("tokens",), dtype="float32")
    summary = extract(wide)
    assert counts(summary)[:2] == (150, 0)
    assert summary.healed[0].endswith("150 rows were committed with another and are lost")
    assert open_features(work.store, "tokens").dtype == np.float32
    assert verify_store(work.store) == []
    assert (work.store / "pooled" / "c.0.0").read_bytes() == pooled


def test_trusted_content_is_not_read_but_a_lost_file_is_noticed(work: Job) -> None:
    flip(work.store / "tokens" / "c.0.0.0", random.Random(0))
    (work.store / "tokens" / "c.5.0.0").unlink()
    trusting = dataclasses.replace(work, check_content=False)
    assert counts(extract(trusting))[0] == 16
    assert counts(extract(trusting))[0] == 0
    assert counts(extract(work))[0] == 16


def test_damage_and_a_replaced_picture_in_one_block(work: Job, photos: Path, tmp_path: Path) -> None:
    root = shutil.copytree(photos, tmp_path / "root")
    found = manifest(tmp_path / "m", root, PATHS, [])
    mine = job(found, tmp_path / "mine", outputs=BOTH)
    extract(mine)
    flip(mine.store / "tokens" / "c.5.0.0", random.Random(0))
    shutil.copy(root / "160.png", root / "070.png")
    shutil.copy(root / "161.png", root / "001.png")
    (root / "081.png").unlink()  # in the damaged chunk: its row cannot be made again
    summary = extract(dataclasses.replace(mine, outputs=("tokens",)))
    assert counts(summary) == (18, 132, 147, 0, 3)
    assert verify_store(mine.store) == []
    fresh = job(found, tmp_path / "fresh", outputs=BOTH)
    extract(fresh)
    assert everything(mine.store) == everything(fresh.store)


@pytest.mark.parametrize("name", ["status", "tokens", "status/locks", "status/blocks", "content_hash"])
def test_a_lost_folder(work: Job, name: str) -> None:
    before = files(work.store)
    shutil.rmtree(work.store / name)
    lost = named(verify_store(work.store))
    assert counts(extract(work))[0] == (0 if name == "status/locks" else 150)
    assert lost == (set() if name == "status/locks" else {*range(150)})
    assert files(work.store) == before


def test_ids_written_by_another_version_of_the_library(work: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives other bytes: the group's seal follows them."""
    (work.store / "status" / "rows.parquet").unlink()
    monkeypatch.setattr(mending, "parquet_bytes", plain_parquet)
    assert counts(extract(work))[0] == 0
    assert verify_store(work.store) == []
    assert open_features(work.store, "pooled").ids[3] == "i:003.png"


def plain_parquet(ids: Any) -> bytes:
    buffer = BytesIO()
    pq.write_table(pa.table({"id": ids}), buffer, compression="none")
    return buffer.getvalue()


def test_healing_that_is_interrupted_goes_on(work: Job) -> None:
    before = store_files(work.store)
    for name in ("status/c.0", "tokens/c.5.0.0", "pooled/c.2.0"):
        flip(work.store / name, random.Random(0))
    stopped = dataclasses.replace(work, encoder=load_encoder("toys.toy:Toy:m", {"interrupt_after": 4}))
    with pytest.raises(InterruptedRunError):
        extract(stopped)
    assert counts(extract(work))[0] == 16 + 22  # 64 were done
    assert store_files(work.store) == before


def test_a_damaged_list_of_failures_is_no_obstacle(work: Job) -> None:
    listed = work.store.with_suffix(".failures.jsonl")
    listed.write_bytes(b"\xff{\n" + listed.read_bytes())
    assert counts(extract(work))[0] == 0
    assert [json.loads(line)["id"] for line in listed.read_text().splitlines()] == ["i:empty.jpg", "i:cut.png"]
