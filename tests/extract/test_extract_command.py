"""The command around the run: kills, exit codes, what is said."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toys.mini import BAD, command, job, manifest, store_files

from vlpipe.extract.run import extract
from vlpipe.manifests.manifest import Manifest
from vlpipe.pipeline import run

TOYS = Path(__file__).parent


def test_killed_in_the_middle_then_the_same_command(good: Manifest, tmp_path: Path) -> None:
    log = tmp_path / "log"
    arguments = command(good, tmp_path / "cache", "--side", "image", "--batch-size", "16", "--set", f'log="{log}"')
    environment = os.environ | {"PYTHONPATH": str(TOYS)}
    line = [sys.executable, "-m", "vlpipe.pipeline", *arguments]
    process = subprocess.Popen([*line, "--set", "seconds=0.1"], env=environment, stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not log.exists() or len(log.read_text().splitlines()) < 6:  # in the second of four blocks
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]
    log.unlink()
    done = subprocess.run([*line, "--json"], env=environment, check=True, capture_output=True, text=True)
    summary = json.loads(done.stdout)
    assert 0 < summary["already"] < 200
    assert sum(map(int, log.read_text().splitlines())) == summary["encoded"] == 200 - summary["already"]
    whole = dataclasses.replace(job(good, tmp_path / "whole"), name="toys.toy:Toy:m")
    extract(whole)
    killed = dataclasses.replace(whole, cache=tmp_path / "cache")
    assert store_files(killed.store) == store_files(whole.store)


def test_the_command_does_both_sides_and_says_so(
    good: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(good, tmp_path)) == 0
    first = capsys.readouterr().out.splitlines()
    assert len(first) == 2
    assert "image pooled: encoded 200 rows" in first[0]
    assert "text pooled: encoded 200 rows" in first[1]
    assert run(command(good, tmp_path)) == 0
    assert all("encoded 0, all 200 rows were there" in line for line in capsys.readouterr().out.splitlines())
    assert run(command(good, tmp_path, "--json")) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(s["side"], s["encoded"], s["already"]) for s in found] == [("image", 0, 200), ("text", 0, 200)]


def test_too_many_failures_exit_3_after_everything_is_kept(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = manifest(tmp_path / "m", photos, ["001.png", *BAD], ["a", "b"])
    assert run(command(found, tmp_path)) == 3
    shown = capsys.readouterr()
    assert "1 ok, 5 failed (most often: the file is empty (0 bytes) (1 of 5); all in " in shown.out
    assert "text pooled: encoded 2 rows" in shown.out
    assert shown.err.startswith("error: 5 of 6 image rows failed")
    assert run(command(found, tmp_path, "--max-failures", "0.9")) == 0
    worst = manifest(tmp_path / "n", photos, BAD, [])
    assert run(command(worst, tmp_path, "--max-failures", "1")) == 3


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (["--output", "poled"], 2, "did you mean 'pooled'"),
        (["--set", "scal=2.0"], 2, "did you mean 'scale'"),
        (["--set", "scale=true"], 2, "setting 'scale'"),
        (["--encoder", "bundeld:x"], 2, "did you mean 'bundled'"),
        (["--encoder", "toys.toy:Toy:n", "--as", "one"], 2, "--as 'one' names one store"),
        (["--dtype", "bfloat16"], 2, "float16"),
        (["--manifest", "nowhere"], 1, "does not exist"),
    ],
)
def test_wrong_words_are_one_line_with_the_nearest(
    more: list[str], code: int, says: str, good: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(good, tmp_path, *more)) == code
    shown = capsys.readouterr()
    assert says in shown.err
    assert not shown.out
    assert not list(tmp_path.iterdir())


def test_an_output_of_one_side_leaves_the_other_alone(
    good: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(good, tmp_path, "--output", "tokens", "--as", "mine")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("mine.image.zarr")
