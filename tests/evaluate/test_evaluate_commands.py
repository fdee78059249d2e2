from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from vlpipe.evaluate import commands
from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError
from vlpipe.heads.contracts import Batch, HeadConfig, Role, Shapes

Maker = Callable[..., Any]


class ImagesAlone(nn.Module):
    """A head that reads no texts."""

    Config = HeadConfig
    roles: ClassVar[Any] = {"image": Role("image")}
    code = 1

    def __init__(self, config: HeadConfig, shapes: Shapes) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shapes.width("image")))

    def update(self, batch: Batch) -> dict[str, float]:
        return {}

    def finish(self) -> None: ...

    def images(self, batch: Batch) -> Batch:
        return batch


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
    assert figures == [f"retrieval-test-{run}-{part}.png" for part in ("caption-sensitivity", "recall")]
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
    with pytest.raises(UnknownNameError, match="no task is named 'other'"):
        call(commands.results, "--runs", made.runs, "--task", "other")


def test_ties_are_told(place: Maker) -> None:
    made = place(equal=True)
    done = call(commands.evaluate, "--run", made.train(), "--runs", made.runs)
    assert "ties" in done.stderr
    assert "i2t_recall@1 0 to 1" in done.stderr
    assert done.stderr.count("warning") == 1
    assert done.stdout.count("warning") == 0


def attempt(*arguments: object) -> tuple[int, str, Any]:
    """Exit code, stderr, and what --json prints."""
    done = CliRunner().invoke(commands.evaluate, [*map(str, arguments), "--json"])
    code = done.exception.exit_code if isinstance(done.exception, VlpipeError) else done.exit_code
    assert done.exception is None or isinstance(done.exception, VlpipeError | SystemExit)
    return code, done.stderr, json.loads(done.stdout) if done.stdout else None


def test_a_run_without_texts_is_refused_or_skipped(place: Maker) -> None:
    made = place()
    blind = made.train(f"{__name__}:ImagesAlone")
    with pytest.raises(UsageError, match=f"run '{blind}' reads no texts, so it scores nothing"):
        call(commands.evaluate, "--run", blind, "--runs", made.runs)
    with pytest.raises(VlpipeError, match="has anything to score"):
        call(commands.evaluate, "--all", "--runs", made.runs)
    run = made.train()
    code, told, shown = attempt("--all", "--runs", made.runs)
    assert code == 0
    assert told.count(f"skipped: run '{blind}' reads no texts") == 1
    assert ([e["run"] for e in shown["evaluations"]], shown["skipped"], shown["failed"]) == ([run], [blind], [])


def test_a_run_that_fails_does_not_stop_the_others(place: Maker) -> None:
    made = place()
    first, last, stale, broken = (made.train(seed=seed) for seed in range(4))
    config = made.runs / stale / "config.toml"
    config.write_text(config.read_text().replace("code = 1", "code = 99"))
    code, told, shown = attempt("--all", "--runs", made.runs)
    assert code == 4
    assert len(shown["failed"]) == told.count("failed: ") == 1
    assert shown["failed"][0].startswith(f"{stale}: run '{stale}' was trained by version 99")
    assert {e["run"] for e in shown["evaluations"]} == {first, last, broken}
    (made.runs / broken / "head.safetensors").write_bytes(b"torn")
    (made.runs / last / "status.json").write_text("{")
    code, told, shown = attempt("--all", "--runs", made.runs)
    assert (code, len(shown["failed"]), told.count("failed: ")) == (1, 3, 3)
    assert [e["run"] for e in shown["evaluations"]] == [first]
    assert all("\n" not in line for line in shown["failed"])
    code, told, shown = attempt("--run", first, "--run", "nobody", "--run", stale, "--runs", made.runs)
    assert (code, len(shown["evaluations"]), len(shown["failed"])) == (1, 1, 2)
    code, told, shown = attempt("--run", stale, "--runs", made.runs)
    assert (code, shown) == (4, None)


def test_a_wrong_setting_is_no_failure_of_a_run(place: Maker) -> None:
    made = place()
    made.train()
    made.train(seed=1)
    with pytest.raises(UnknownNameError, match="'ks'"):
        call(commands.evaluate, "--all", "--runs", made.runs, "--set", "k=[1]")


def test_several_tasks_of_several_seeds_are_one_command(place: Maker) -> None:
    made = place()
    ids = [made.train("projection", objective="con", seed=seed, epochs=1, batch_size=16) for seed in (5, 42, 55)]
    asked = ["--task", "retrieval", "--task", "pair_cosines", "--set", "ks=[1,2]"]
    code, _, shown = attempt("--all", "--runs", made.runs, *asked)
    assert code == 0
    assert {(e["run"], e["task"]) for e in shown["evaluations"]} == {
        (run, task) for run in ids for task in ("retrieval", "pair_cosines")
    }
    assert len(shown["figures"]) == 2 + 3
    done = call(commands.evaluate, "--all", "--runs", made.runs, *asked)
    assert done.stdout.count("cosine with the caption") == 1  # a table a task
    over = call(commands.results, "--runs", made.runs, "--over-seeds", "--markdown").stdout
    assert over.count("(n = 3)") >= 2
    with pytest.raises(UnknownNameError, match="setting of these tasks is named 'kz'"):
        call(commands.evaluate, "--all", "--runs", made.runs, *asked, "--set", "kz=1")
    code, told, shown = attempt("--run", ids[0], "--runs", made.runs, *asked, "--task", "winoground")
    assert (code, len(shown["evaluations"])) == (1, 2)
    assert told.count(f"failed: {ids[0]}, winoground: no two captions") == 1


def test_a_torn_ledger_stops_nothing(place: Maker) -> None:
    made = place()
    run = made.train()
    call(commands.evaluate, "--run", run, "--runs", made.runs)
    ledger = made.runs / "results.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-20])
    shown = call(commands.results, "--runs", made.runs)
    assert run in shown.stdout
    assert f"warning: {ledger} line " in shown.stderr
    call(commands.evaluate, "--run", run, "--runs", made.runs)
    assert call(commands.results, "--runs", made.runs).stderr == ""


def test_which_runs(place: Maker) -> None:
    made = place()
    for arguments in ([], ["--all", "--run", "x"]):
        with pytest.raises(UsageError, match="--run ID, once or more, or --all"):
            call(commands.evaluate, "--runs", made.runs, *arguments)
    with pytest.raises(VlpipeError, match="no finished run"):
        call(commands.evaluate, "--runs", made.runs, "--all")
    with pytest.raises(VlpipeError, match="holds no results; make some with vlpipe eval"):
        call(commands.results, "--runs", made.runs)
