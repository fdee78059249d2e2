"""`extract --plan`: what would be done, how large it gets, how long it takes; and the refusal of a full disk."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from toys.mini import BAD, captions, command, job, manifest

from vlpipe.cache_store import preview
from vlpipe.cache_store.errors import CacheWriteError, CorruptCacheError, StaleCacheError
from vlpipe.extract import plan as plans
from vlpipe.extract.job import Job
from vlpipe.extract.plan import Plan, plan, plan_line
from vlpipe.extract.run import InterruptedRunError, extract
from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.manifest import Manifest
from vlpipe.pipeline import main

BOTH = ("pooled", "tokens")
PATHS = [f"{n:03d}.png" for n in range(200)]


def sizes(store: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in store.rglob("*") if path.is_file()}


def check_against_the_run(work: Job, within: float = 0.02) -> Plan:
    """The plan writes nothing, and says what the run then does."""
    before = {p: p.stat().st_mtime_ns for p in work.cache.rglob("*")} if work.cache.exists() else None
    old = sizes(work.store)
    found = plan(work)
    after = {p: p.stat().st_mtime_ns for p in work.cache.rglob("*")} if work.cache.exists() else None
    assert before == after
    summary = extract(work)
    assert (found.encode, found.copy, found.already) == (summary.encoded, summary.copied, summary.already)
    new = sizes(work.store)
    assert found.files == len(new.keys() - old.keys())
    assert found.bytes == pytest.approx(sum(new.values()) - sum(old.values()), rel=within, abs=100)
    return found


@pytest.mark.parametrize("outputs", [("pooled",), BOTH])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_new_store_gets_as_large_as_planned(
    outputs: tuple[str, ...], dtype: str, good: Manifest, tmp_path: Path
) -> None:
    found = check_against_the_run(job(good, tmp_path / "c", outputs=outputs, dtype=dtype))
    assert (found.encode, found.looked_up) == (200, 200)
    assert set(found.rows_per_second) == {"prepare", "encode"}
    assert found.seconds == pytest.approx(sum(200 / s for s in found.rows_per_second.values()), abs=0.06)


def test_what_is_left_of_a_store_and_what_an_added_output_needs(good: Manifest, tmp_path: Path) -> None:
    with pytest.raises(InterruptedRunError):
        extract(job(good, tmp_path, settings={"interrupt_after": 9}))
    rest = check_against_the_run(job(good, tmp_path))
    assert (rest.encode, rest.already) == (72, 128)
    added = check_against_the_run(job(good, tmp_path, outputs=("tokens",)), within=0.1)
    assert added.encode == 200
    nothing = check_against_the_run(job(good, tmp_path, outputs=BOTH))
    assert (nothing.bytes, nothing.files, nothing.seconds, nothing.rows_per_second) == (0, 0, None, {})


def test_known_content_is_planned_to_be_copied(photos: Path, tmp_path: Path) -> None:
    extract(job(manifest(tmp_path / "m", photos, PATHS[:100], []), tmp_path / "c"))
    grown = manifest(tmp_path / "n", photos, [*PATHS[:120], "same-as-005.png"], [])
    found = check_against_the_run(job(grown, tmp_path / "c"))
    assert (found.encode, found.copy) == (20, 101)


def test_texts_and_their_repeats(tmp_path: Path) -> None:
    texts = [*captions(150), *captions(30)]
    found = check_against_the_run(job(manifest(tmp_path / "m", tmp_path, [], texts), tmp_path / "c", "text"))
    assert (found.encode, found.copy) == (150, 30)


def test_of_many_rows_some_are_looked_up(
    good: Manifest, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plans.SAMPLE, "image", 50)
    extract(job(manifest(tmp_path / "m", photos, PATHS[::2], []), tmp_path / "c"))
    found = plan(job(good, tmp_path / "c"))
    assert found.looked_up == 50
    assert found.encode + found.copy == 200
    assert found.copy in (0, 200)  # every fourth row is in it: the sample is spread evenly
    assert "about" in plan_line(found)
    assert "(content of 50 looked up)" in plan_line(found)


def test_failed_rows_count_on_request_and_failures_are_not_timed(photos: Path, tmp_path: Path) -> None:
    found = manifest(tmp_path / "m", photos, ["001.png", *BAD], [])
    extract(job(found, tmp_path / "c"))
    assert plan(job(found, tmp_path / "c")).encode == 0
    again = plan(job(found, tmp_path / "c", retry_failed=True))
    assert (again.encode, again.already, again.seconds, again.bytes) == (5, 1, None, 0)
    assert "no row that was tried could be encoded" in plan_line(again)


def test_the_estimate_comes_from_few_batches_of_the_model(good: Manifest, tmp_path: Path) -> None:
    """A batch of 16 takes 0.05 s at least, so 200 rows take 0.6 s at least."""
    work = job(good, tmp_path, settings={"seconds": 0.05})
    found = plan(work)
    assert 0 < found.rows_per_second["encode"] <= 16 / 0.05
    assert found.seconds is not None
    assert found.seconds >= 0.6
    assert work.encoder.batches == [16] * 4  # type: ignore[attr-defined]


def test_a_gpu_encodes_while_pictures_are_prepared(good: Manifest, tmp_path: Path) -> None:
    work = job(good, tmp_path)
    speeds = {"prepare": 10.0, "encode": 40.0}
    assert plans._seconds(work, 200, speeds) == 25
    work.encoder.device = "cuda:0"  # type: ignore[attr-defined]
    assert plans._seconds(work, 200, speeds) == 20
    assert plans._seconds(dataclasses.replace(work, side="text"), 200, speeds) == 25
    assert plans._seconds(work, 200, {}) is None


def test_a_plan_refuses_what_the_run_would(good: Manifest, tmp_path: Path) -> None:
    extract(job(good, tmp_path))
    with pytest.raises(StaleCacheError, match="weights"):
        plan(job(good, tmp_path, model="other"))
    with pytest.raises(StaleCacheError, match="dtype"):
        plan(job(good, tmp_path, dtype="float32"))
    lost = manifest(tmp_path / "n", tmp_path / "lost", ["001.png"], [])
    with pytest.raises(VlpipeError, match="does not exist"):
        plan(job(lost, tmp_path))


@pytest.mark.parametrize(
    "damaged", ["zarr.json", "pooled/zarr.json", "status/zarr.json", "content_hash/zarr.json"]
)
def test_damaged_metadata_is_no_missing_array(damaged: str, good: Manifest, tmp_path: Path) -> None:
    """The run would write it anew and encode nothing: a plan that counts all rows would be wrong."""
    work = job(good, tmp_path)
    extract(work)
    (work.store / damaged).write_bytes(b"{")
    with pytest.raises(CorruptCacheError, match=f"{damaged}' is missing, damaged"):
        plan(work)
    assert extract(work).already == 200
    assert plan(work).encode == 0


def test_many_chunks_lie_in_shards_as_planned(
    good: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vlpipe.cache_store import layout

    monkeypatch.setattr(layout, "MANY_CHUNKS", 2)
    monkeypatch.setattr(layout, "CHUNK_BYTES", 4096)
    found = check_against_the_run(job(good, tmp_path, outputs=BOTH, dtype="float32"))
    assert found.files < 40


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "under 1 s"), (119, "about 119 s"), (150, "about 2 min"), (7300, "about 2 h"), (1e6, "about 12 days")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    base = Plan("e", "image", "s", ("o",), 9, 9, 0, 0, 9, 1, 1, 1, {"prepare": 1.0, "encode": 2.0}, seconds)
    assert f"; {words} (rows a second: prepare 1, encode 2) -> s" in plan_line(base)


class Disk:
    """So many free bytes, wherever one looks."""

    def __init__(self, free: int) -> None:
        self.f_bavail, self.f_frsize = free, 1


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview.os, "statvfs", lambda path: Disk(5000))


def run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return int(left.value.code or 0)


def test_a_disk_that_cannot_hold_it_is_refused_before_the_first_row(
    full: None, good: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = job(good, tmp_path / "c")
    with pytest.raises(CacheWriteError, match=r"would grow by .* KiB, its disk has 5 KiB free") as caught:
        extract(work)
    assert caught.value.exit_code == 1
    assert work.encoder.batches == []  # type: ignore[attr-defined]
    assert run(command(good, tmp_path / "d", "--plan")) == 1
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2
    assert len(shown.err.splitlines()) == 2  # the note of every plan, and why not
    assert "free some, give another --cache, or ask for fewer outputs" in shown.err
    assert not (tmp_path / "d").exists()


def test_a_full_disk_does_not_matter_where_nothing_is_added(
    good: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = job(good, tmp_path)
    extract(work)
    monkeypatch.setattr(preview.os, "statvfs", lambda path: Disk(0))
    assert extract(work).already == 200
    assert plan(work).free == 0


def test_a_killed_writers_chunks_need_no_room_again(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = job(manifest(tmp_path / "m", photos, PATHS, []), tmp_path / "c", outputs=BOTH)
    extract(work)
    for path in (work.store / "status" / "blocks").iterdir():
        path.unlink()
    markers = plan(work)
    assert markers.files == 4
    assert markers.bytes < 4 * 2000


def test_the_command_prints_a_line_a_store_or_json(
    good: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(good, tmp_path / "c", "--plan")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"toys.toy:Toy:m {s} pooled" for s in ("image", "text")]
    assert all("200 rows to encode, 0 to copy, 0 are there; " in line for line in lines)
    assert run(command(good, tmp_path / "c", "--plan", "--json")) == 0
    found: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["encode"] for line in found] == [200, 200]
    assert found[0].keys() == {field.name for field in dataclasses.fields(Plan)}
    assert not (tmp_path / "c").exists()


def test_free_space_is_that_of_the_nearest_folder_there_is(tmp_path: Path) -> None:
    free = preview.free_bytes(tmp_path / "not" / "yet")
    found = os.statvfs(tmp_path)
    assert free == pytest.approx(found.f_bavail * found.f_frsize, rel=0.05)
    assert free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)
