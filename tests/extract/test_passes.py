"""Several encoders in one pass: every picture is read and decoded once, and each store is as if it were alone."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from toys.fresh import work_done
from toys.mini import BAD, job, manifest, store_files

from vlpipe.cache_store.layout import marker_path
from vlpipe.extract import decoding, preparing
from vlpipe.extract.job import Job
from vlpipe.extract.run import InterruptedRunError, extract, extract_all
from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.manifest import Manifest
from vlpipe.pipeline import run

BOTH = ("pooled", "tokens")


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[Any]]:
    """How often each file was read, and each file's bytes decoded."""
    found: dict[str, Counter[Any]] = {"read": Counter(), "decoded": Counter()}
    read, decode = preparing.read_bytes, decoding.decode

    def counted_read(path: Path) -> bytes:
        found["read"][path.name] += 1
        return read(path)

    def counted_decode(data: bytes) -> Any:
        found["decoded"][data] += 1
        return decode(data)

    monkeypatch.setattr(preparing, "read_bytes", counted_read)
    monkeypatch.setattr(decoding, "decode", counted_decode)
    return found


def several(found: Manifest, cache: Path, **options: Any) -> list[Job]:
    """Three encoders, one with two outputs; their stores have blocks of 64, 32 and 64 rows."""
    jobs = [
        dataclasses.replace(job(found, cache, model=model, outputs=outputs, **options), name=model)
        for model, outputs in (("a", ("pooled",)), ("b", BOTH), ("c", ("tokens",)))
    ]
    real = jobs[1].encoder.outputs
    wide = {"wide": dataclasses.replace(real("image")["pooled"], shape=(4 << 20,))}
    jobs[1].encoder.outputs = lambda side: real(side) | wide  # type: ignore[method-assign]
    assert [work.open().writer.block_rows for work in jobs] == [64, 32, 64]
    return jobs


@pytest.fixture
def rows(photos: Path, tmp_path: Path) -> Manifest:
    """165 of which 30, in another block, have the content of others, and 5 are no pictures."""
    root = tmp_path / "root"
    shutil.copytree(photos, root)
    for n in range(60, 90):
        shutil.copy(photos / f"{n:03d}.png", root / f"same-{n}.png")
    good = [f"{n:03d}.png" for n in range(130)]
    same = [f"same-{n}.png" for n in range(60, 90)]
    return manifest(tmp_path / "m", root, [*good[:100], *BAD, *same, *good[100:]], [])


def check_alone(jobs: list[Job], fresh: Path, **options: Any) -> None:
    """Each store's files are those of one that was made alone."""
    for work, alone in zip(jobs, several(jobs[0].manifest, fresh, **options), strict=True):
        extract(alone)
        assert store_files(work.store) == store_files(alone.store)


@pytest.mark.parametrize("workers", [0, 2])
def test_blocks_of_several_sizes_equal_those_made_alone(workers: int, rows: Manifest, tmp_path: Path) -> None:
    jobs = several(rows, tmp_path / "c", workers=workers)
    found = extract_all(jobs)
    assert [work_done(summary) for summary in found] == [(135, 30, 0)] * 3
    assert [(summary.ok, summary.failed) for summary in found] == [(160, 5)] * 3
    listed = [[json.loads(line)["id"] for line in Path(str(s.failures)).read_text().splitlines()] for s in found]
    assert listed == [[f"i:{path}" for path in BAD]] * 3
    check_alone(jobs, tmp_path / "fresh")
    assert [work_done(summary) for summary in extract_all(jobs)] == [(0, 0, 165)] * 3


def test_every_picture_is_read_and_decoded_once(
    good: Manifest, tmp_path: Path, touched: dict[str, Counter[Any]]
) -> None:
    extract_all(several(good, tmp_path / "c"))
    assert len(touched["read"]) == 200
    assert {*touched["read"].values()} == {1}
    assert touched["decoded"].total() == 200


def test_only_what_some_store_misses_is_read(
    good: Manifest, tmp_path: Path, touched: dict[str, Counter[Any]]
) -> None:
    """Blocks of different sizes are missing: 64 to 127 of one, 32 to 63 and 192 to 199 of the other."""
    jobs = several(good, tmp_path / "c")
    extract_all(jobs)
    before = [store_files(work.store) for work in jobs]
    for place, block in ((0, 1), (1, 1), (1, 6)):
        marker_path(jobs[place].store, block).unlink()
    again = [dataclasses.replace(work, check_content=False) for work in several(good, tmp_path / "c")]
    for counter in touched.values():
        counter.clear()
    assert [work_done(found) for found in extract_all(again)] == [(64, 0, 136), (40, 0, 160), (0, 0, 200)]
    names = {f"{n:03d}.png" for n in (*range(64, 128), *range(32, 64), *range(192, 200))}
    assert {*touched["read"]} == names
    assert touched["decoded"].total() == len(names)
    assert [store_files(work.store) for work in jobs] == before


def test_what_one_store_knows_is_decoded_for_the_others_only(
    good: Manifest, photos: Path, tmp_path: Path, touched: dict[str, Counter[Any]]
) -> None:
    """One encoder has seen the pictures in another manifest."""
    first, *_ = several(good, tmp_path / "c")
    extract(first)
    more = manifest(tmp_path / "n", photos, [f"{n:03d}.png" for n in range(10, 110)], [])
    for counter in touched.values():
        counter.clear()
    one, two = several(more, tmp_path / "c")[:2]
    assert [work_done(found) for found in extract_all([one, two])] == [(0, 100, 0), (100, 0, 0)]
    assert touched["decoded"].total() == 100
    last = manifest(tmp_path / "o", photos, [f"{n:03d}.png" for n in range(20, 90)], [])
    assert [work_done(found)[1] for found in extract_all(several(last, tmp_path / "c")[:2])] == [70, 70]
    assert touched["decoded"].total() == 100


def test_what_one_encoder_cannot_prepare_is_only_its_own_failure(
    good: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = several(good, tmp_path / "c")
    real = jobs[1].encoder.prepare

    def prepare(item: Any) -> Any:
        if item.id == "i:070.png":
            raise VlpipeError("too wide")
        return real(item)

    jobs[1].encoder.prepare = prepare  # type: ignore[method-assign]
    found = extract_all(jobs)
    assert [summary.failed for summary in found] == [0, 1, 0]
    assert "too wide" in Path(str(found[1].failures)).read_text()


def test_interrupted_in_several_stores_then_resumed(good: Manifest, tmp_path: Path) -> None:
    jobs = several(good, tmp_path / "c")
    jobs[2] = dataclasses.replace(
        job(good, tmp_path / "c", model="c", outputs=("tokens",), settings={"interrupt_after": 6}), name="c"
    )
    with pytest.raises(InterruptedRunError, match="64, 96, 64 of 200 image rows are kept"):
        extract_all(jobs)
    rest = several(good, tmp_path / "c")
    assert [work_done(found) for found in extract_all(rest)] == [(136, 0, 64), (104, 0, 96), (136, 0, 64)]
    check_alone(rest, tmp_path / "fresh")


def test_texts_of_several_encoders(good: Manifest, tmp_path: Path) -> None:
    jobs = [
        dataclasses.replace(job(good, tmp_path / "c", "text", model=model), name=model, tokens=tokens)
        for model, tokens in (("a", 100), ("b", None))
    ]
    assert [work_done(found) for found in extract_all(jobs)] == [(200, 0, 0)] * 2
    for work in jobs:
        alone = dataclasses.replace(work, cache=tmp_path / "fresh")
        extract(alone)
        assert store_files(work.store) == store_files(alone.store)


def test_the_command_decodes_once_for_all_its_encoders(
    good: Manifest, tmp_path: Path, touched: dict[str, Counter[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    encoders = [part for model in "mnm" for part in ("--encoder", f"toys.toy:Toy:{model}")]
    base = ["extract", "--manifest", str(good.folder), "--cache", str(tmp_path / "c"), "--workers", "0"]
    assert run([*base, *encoders, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = [(summary["encoder"][-1], summary["side"], summary["encoded"]) for summary in found]
    assert told == [("m", "image", 200), ("n", "image", 200), ("m", "text", 200), ("n", "text", 200)]
    assert {*touched["read"].values()} == {1}
    assert touched["decoded"].total() == 200
