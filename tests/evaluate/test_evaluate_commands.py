from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from vlpipe.evaluate import commands
from vlpipe.foundation.errors import UsageError, VlpipeError

Maker = Callable[..., Any]


def call(command: Any, *arguments: object) -> Any:
    done = CliRunner().invoke(command, [str(a) for a in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_evaluate_then_results(place: Maker) -> None:
    made = place()
    run = made.train()
    done = call(commands.evaluate, "--run", run, "--runs", made.runs)
    assert done.exit_code == 0
    assert run in done.stdout
    assert "I→T R@1" in done.stdout
    figures = sorted(path.name for path in (made.runs / "figures").iterdir())
    assert figures == ["retrieval-test-caption-sensitivity.png", "retrieval-test-recall.png"]
    again = json.loads(call(commands.evaluate, "--all", "--runs", made.runs, "--json").stdout)
    assert [e["reused"] for e in again["evaluations"]] == [True]
    assert again["evaluations"][0]["metrics"]["i2t_recall@1"].keys() == {"value", "interval", "rows"}
    assert (
        "evaluated before, nothing computed again" in call(commands.evaluate, "--all", "--runs", made.runs).stderr
    )

    assert run in call(commands.results, "--runs", made.runs).stdout
    assert call(commands.results, "--runs", made.runs, "--markdown").stdout.startswith("| run |")
    assert "n = 1" in call(commands.results, "--runs", made.runs, "--over-seeds", "--markdown").stdout
    entries = json.loads(call(commands.results, "--runs", made.runs, "--json").stdout)
    assert {e["metric"] for e in entries} == set(again["evaluations"][0]["metrics"])
    with pytest.raises(VlpipeError, match="holds no results of task 'other'"):
        call(commands.results, "--runs", made.runs, "--task", "other")


def test_ties_are_told(place: Maker) -> None:
    made = place(equal=True)
    done = call(commands.evaluate, "--run", made.train(), "--runs", made.runs)
    assert "ties" in done.stderr
    assert "i2t_recall@1 0 to 1" in done.stderr
    assert done.stderr.count("warning") == 1
    assert done.stdout.count("warning") == 0


def test_which_runs(place: Maker) -> None:
    made = place()
    for arguments in ([], ["--all", "--run", "x"]):
        with pytest.raises(UsageError, match="--run ID, once or more, or --all"):
            call(commands.evaluate, "--runs", made.runs, *arguments)
    with pytest.raises(VlpipeError, match="no finished run"):
        call(commands.evaluate, "--runs", made.runs, "--all")
    with pytest.raises(VlpipeError, match="holds no results; make some with vlpipe eval"):
        call(commands.results, "--runs", made.runs)
