"""`vlpipe cache verify`: what it prints, and its exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from toys.mini import captions, job, manifest, store_files

from vlpipe.cache_store.errors import CacheReadError, DamagedError, NotCachedError, StaleCacheError
from vlpipe.cache_store.group import Group, add_output
from vlpipe.cache_store.layout import ArraySpec
from vlpipe.cache_store.verify import Damage
from vlpipe.extract.commands import extract as extract_command
from vlpipe.extract.job import Job
from vlpipe.extract.recheck import recompute, relative_distance
from vlpipe.extract.run import extract
from vlpipe.extract.tools import verifying
from vlpipe.extract.tools.commands import verify
from vlpipe.foundation.errors import UsageError, VlpipeError

PATHS = [f"{n:03d}.png" for n in range(70)]
TOY = "toys.toy:Toy:m"


@pytest.fixture
def work(photos: Path, tmp_path: Path) -> Job:
    """Two outputs of 70 pictures, in two blocks."""
    root = shutil.copytree(photos, tmp_path / "root")
    found = job(
        manifest(tmp_path / "m", root, PATHS, captions(70)), tmp_path / "cache", outputs=("pooled", "tokens")
    )
    extract(found)
    return found


def run(*arguments: str | Path, error: type[VlpipeError] | None = None) -> str:
    result = CliRunner().invoke(verify, [str(argument) for argument in arguments])
    if error:
        assert isinstance(result.exception, error), result.output
    elif result.exception:
        raise result.exception
    return result.stdout


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[10] ^= 16
    path.write_bytes(data)


def test_a_cache_that_is_right(work: Job) -> None:
    extract(job(work.manifest, work.cache, side="text"))
    lines = run("--cache", work.cache).splitlines()
    assert lines == [
        f"{work.store}: ok, 70 rows of pooled, tokens",
        f"{work.store.with_name('toy.text.zarr')}: ok, 70 rows of pooled",
    ]
    assert [entry["ok"] for entry in json.loads(run("--cache", work.cache, "--json"))] == [True, True]


def test_damage_is_told_with_file_rows_and_ids(work: Job) -> None:
    extract(job(work.manifest, work.cache, side="text"))
    flip(work.store / "tokens" / "c.0.0.0")
    (work.store / "status" / "blocks" / "1.json").unlink()
    lines = run("--cache", work.cache, error=DamagedError).splitlines()
    assert lines[0] == f"{work.store}: 2 damaged"
    assert lines[1].startswith("  tokens/c.0.0.0 has crc32c ")
    assert lines[1].endswith("; rows 0 to 63: 'i:000.png', 'i:001.png', 'i:002.png' and 61 more")
    assert lines[2].startswith("  status/blocks/1.json is missing")
    assert lines[3] == "  the same `vlpipe extract` encodes only these rows again"
    assert ": ok, " in lines[4]
    image, text = json.loads(run("--cache", work.cache, "--json", error=DamagedError))
    assert text["ok"]
    assert image["damage"][1]["ids"] == [f"i:{path}" for path in PATHS[64:]]
    assert image["damage"][0]["rows"] == [0, 64]
    assert ": ok, " in run(work.store.with_name("toy.text.zarr"))
    with pytest.raises(DamagedError, match="1 of 1 stores are damaged or cannot be read"):
        run(work.store)
    extract(work)
    run("--cache", work.cache)


def test_the_same_extract_says_what_it_healed(work: Job) -> None:
    how = ["--manifest", work.manifest.folder, "--encoder", TOY, "--as", "toy", "--side", "image"]
    how += ["--cache", work.cache, "--output", "pooled", "--output", "tokens"]
    flip(work.store / "tokens" / "c.0.0.0")
    (work.store / "pooled" / "zarr.json").unlink()
    result = CliRunner().invoke(extract_command, [str(option) for option in how])
    assert result.exit_code == 0
    first, second = result.stderr.splitlines()
    assert first == "healed: pooled/zarr.json was damaged: written anew from what is asked, no row is lost"
    assert second.startswith("healed: tokens chunk 0 (rows 0 to 63) had crc32c ")
    assert "encoded 64 rows" in result.stdout
    result = CliRunner().invoke(extract_command, [str(option) for option in [*how, "--json"]])
    assert (json.loads(result.stdout)["healed"], result.stderr) == ([], "")


def test_damaged_ids_are_no_obstacle(work: Job) -> None:
    flip(work.store / "status" / "rows.parquet")
    flip(work.store / "tokens" / "c.0.0.0")
    told = run(work.store, "--manifest", work.manifest.folder, error=DamagedError)
    assert "status/rows.parquet is missing or damaged; rows 0 to 69\n" in told
    (work.store / "zarr.json").unlink()
    told = run(work.store, "--manifest", work.manifest.folder, error=DamagedError)
    assert "zarr.json is missing or damaged, or not vlpipe's; rows 0 to 69\n" in told


def test_rows_that_are_not_there_and_leftovers(work: Job) -> None:
    for name in ("status/blocks/1.json", "status/c.1", "content_hash/c.1.0", "pooled/c.1.0", "tokens/c.1.0.0"):
        (work.store / name).unlink()
    (work.store / "pooled" / "c.1.0.part").touch()
    assert (
        run(work.store)
        == f"{work.store}: ok, 70 rows of pooled, tokens, not encoded yet: 6 of pooled, 6 of tokens\n"
    )
    (entry,) = json.loads(run(work.store, "--json"))
    assert "c.1.0.part" in entry["notes"][0]


def test_a_replaced_picture_is_found(work: Job) -> None:
    root = work.manifest.image_root
    shutil.copy(root / "150.png", root / "003.png")
    (root / "004.png").unlink()  # proves nothing
    assert ": ok, " in run(work.store)
    lines = run(work.store, "--manifest", work.manifest.folder, error=DamagedError).splitlines()
    assert lines[1] == f"  {root / '003.png'} is not what was encoded: it was replaced since; row 3: 'i:003.png'"
    (entry,) = json.loads(run(work.store, "--manifest", work.manifest.folder, "--json", error=DamagedError))
    assert entry["notes"] == ["1 pictures cannot be read, so that their rows were not compared"]
    shutil.copy(root / "005.png", root / "004.png")
    extract(work)
    assert ": ok, " in run(work.store, "--manifest", work.manifest.folder)


def test_a_store_of_another_manifest_is_not_compared(work: Job, tmp_path: Path) -> None:
    other = manifest(tmp_path / "n", work.manifest.image_root, PATHS[:5], ["a"])
    (entry,) = json.loads(run(work.store, "--json", "--manifest", other.folder))
    assert (entry["ok"], entry["notes"]) == (
        True,
        [f"it is of another manifest than '{other.folder}': its content was not compared"],
    )


def test_recomputed_rows_are_equal(work: Job) -> None:
    before = store_files(work.store)
    how = (work.store, "--manifest", work.manifest.folder, "--encoder", TOY, "--recompute", 20)
    assert run(*how).endswith("; 20 rows encoded again, largest distance pooled 0, tokens 0\n")
    (entry,) = json.loads(run(*how, "--json"))
    assert entry["compared"] == 20
    with pytest.raises(StaleCacheError, match=r"pooled.weights: cached 'm', asked 'other'") as caught:
        run(*how[:4], "toys.toy:Toy:other", *how[5:])
    assert caught.value.exit_code == 4
    with pytest.raises(StaleCacheError, match=r"pooled.precision: cached '1.0', asked '2.0'"):
        run(*how, "--set", "scale=2.0")
    with pytest.raises(StaleCacheError, match=r"was made with another encoder: it has no output 'tokens'. Give"):
        run(*how[:4], "toys.toy:PooledOnly:m", *how[5:])
    with pytest.raises(StaleCacheError, match=r"holds images, which the encoder does not read. Give"):
        run(*how[:4], "toys.toy:TextOnly:m", *how[5:])
    assert store_files(work.store) == before


def test_rounding_to_float16_is_within_the_tolerance(work: Job, tmp_path: Path) -> None:
    thirds = job(work.manifest, tmp_path / "thirds", settings={"scale": 1 / 3})
    extract(thirds)
    sample = recompute(thirds.store, work.manifest, thirds.encoder, 70)
    assert 1e-5 < sample.worst["pooled"] < 2**-11
    how = (thirds.store, "--manifest", work.manifest.folder, "--encoder", TOY, "--set", f"scale={1 / 3}")
    assert ": ok, " in run(*how, "--recompute", 5)
    told = run(*how, "--recompute", 5, "--tolerance", "1e-9", error=DamagedError).splitlines()
    assert len(told) == 7
    assert told[1].startswith("  pooled is 0.000")


def test_rows_that_come_out_otherwise_are_named(work: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is another than its fingerprint says."""
    real = work.encoder.encode
    monkeypatch.setattr(
        work.encoder, "encode", lambda batch, outputs: {n: v * 1.01 for n, v in real(batch, outputs).items()}
    )
    sample = recompute(work.store, work.manifest, work.encoder, 1000)
    assert sample.rows == 70
    assert {(damage.output, damage.rows.start) for damage in sample.damage} == {
        (output, row) for output in ("pooled", "tokens") for row in range(70)
    }
    assert all(0.009 < worst < 0.011 for worst in sample.worst.values())
    assert recompute(work.store, work.manifest, work.encoder, 1000, tolerance=0.02).damage == []


def test_texts_are_recomputed_and_draws_are_repeatable(work: Job) -> None:
    texts = job(work.manifest, work.cache, side="text", dtype="float32")
    extract(texts)
    first, second = (recompute(texts.store, work.manifest, texts.encoder, 7, seed=seed) for seed in (1, 1))
    assert first == second
    assert (first.rows, first.worst, first.damage) == (7, {"pooled": 0.0}, [])


@pytest.mark.parametrize(
    ("stored", "again", "distance"),
    [
        ([3, 4], [3, 4], 0),
        ([3, 4], [3, 9], 1),
        ([0, 0], [0, 0], 0),
        ([0, 0], [0, 1e-9], 0),
        ([0, 0], [0, 1], np.inf),
    ],
)
def test_relative_distance(stored: list[float], again: list[float], distance: float) -> None:
    found = relative_distance(np.array(stored, np.float16), np.array(again, np.float32))
    assert found == pytest.approx(distance, abs=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_never_close(value: float) -> None:
    assert relative_distance(np.ones(1, np.float16), np.array([value], np.float32)) == np.inf


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--recompute", "3"], "needs --manifest DIR and --encoder SPEC"),
        (["--encoder", TOY], "are for --recompute N"),
        (["--recompute", "3", "--manifest", "m", "--encoder", TOY], "needs the STORE"),
    ],
)
def test_options_that_do_not_fit(options: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        run(*options)


def test_nothing_to_verify(tmp_path: Path) -> None:
    with pytest.raises(NotCachedError):
        run("--cache", tmp_path / "none")
    with pytest.raises(NotCachedError):
        run(tmp_path / "none.zarr")


def test_an_output_that_is_not_encoded_yet_is_told_from_those_that_are(work: Job) -> None:
    add_output(work.store, "later", Group.open(work.store), ArraySpec((2,)), {"weights": "w"})
    assert run(work.store).endswith(": ok, 70 rows of later, pooled, tokens, not encoded yet: 70 of later\n")


def test_a_folder_of_stores_is_no_damaged_store(work: Job) -> None:
    run(work.cache, error=UsageError)
    run(work.store.parent, error=UsageError)
    (work.store / "zarr.json").unlink()
    assert "zarr.json is missing" in run(work.store, error=DamagedError)


def test_failed_rows_are_counted(photos: Path, tmp_path: Path) -> None:
    root = shutil.copytree(photos, tmp_path / "root")
    (root / PATHS[3]).write_bytes(b"no picture")
    found = job(manifest(tmp_path / "m", root, PATHS, captions(70)), tmp_path / "cache")
    extract(found)
    assert run(found.store) == f"{found.store}: ok, 70 rows of pooled, 1 of them failed\n"


def test_a_store_that_cannot_be_read_keeps_no_other_from_being_checked(
    work: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract(job(work.manifest, work.cache, side="text"))
    real = verifying.verify_store

    def refused(store: Path, *how: Any) -> list[Damage]:
        if store == work.store:
            raise CacheReadError(f"cannot read '{store}/zarr.json': Permission denied")
        return real(store, *how)

    monkeypatch.setattr(verifying, "verify_store", refused)
    told = run("--cache", work.cache, error=DamagedError)
    assert "zarr.json': Permission denied\n" in told
    assert "toy.text.zarr: ok, " in told
    assert [e["ok"] for e in json.loads(run("--cache", work.cache, "--json", error=DamagedError))] == [False, True]
