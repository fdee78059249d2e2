"""Run a recipe's commands, and remember which runs and numbers the named ones made."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from vlpipe.evaluate.recipes.filling import Axes, Command, commands, filled, key_of
from vlpipe.evaluate.recipes.recipe import Recipe
from vlpipe.foundation.errors import UsageError

Call = Callable[[Sequence[str]], Any]  # one command line of vlpipe, without `vlpipe`
Say = Callable[[str], None]
Keys = Mapping[str, str]  # the names of the entries of some axes


@dataclass(frozen=True)
class Found:
    """One evaluation of a named eval step: the entries that it is of, and its numbers by metric."""

    step: str
    keys: Keys
    run: str
    task: str
    metrics: Mapping[str, float]


@dataclass
class Made:
    """What named steps made so far."""

    # `step`, entries, a run's id; or `step.encoder`, entries, its spec
    runs: list[tuple[str, Keys, str]] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)

    def runs_of(self, step: str, axes: Axes) -> list[str]:
        """Ids of a step's runs, or of `step.encoder` the specs, whose entries agree with these."""
        asked = {name: key_of(entry) for name, entry in axes.items()}
        ids = dict.fromkeys(run for name, keys, run in self.runs if name == step and agree(keys, asked))
        if not ids:
            raise UsageError(
                f"step '{step}' made nothing for {asked or 'anything'}; expected it earlier in the recipe"
            )
        return list(ids)

    def add(self, command: Command, told: str) -> None:
        """Read what a named step said as JSON."""
        name = command.step.name or ""
        for record in _records(told):
            if "evaluations" in record:
                self.found += [self._evaluation(name, command.keys, one) for one in record["evaluations"]]
            if "encoder" in record:
                self.runs.append((f"{name}.encoder", command.keys, record["encoder"]))
            if "run" in record:
                varied = {key: key_of(value) for key, value in record.get("varied", {}).items()}
                self.runs.append((name, command.keys | varied, record["run"]))

    def _evaluation(self, step: str, keys: Keys, told: Mapping[str, Any]) -> Found:
        """An evaluation is of its step's entries, and of those of the run that it is of."""
        own = next((made for _, made, run in self.runs if run == told["run"] and agree(made, keys)), {})
        metrics = {name: number["value"] for name, number in told["metrics"].items()}
        return Found(step, {**own, **keys}, told["run"], told["task"], metrics)


def agree(one: Keys, other: Keys) -> bool:
    """Whether two have the same entries on all axes that both have."""
    return all(one[name] == other[name] for name in one.keys() & other.keys())


def run(recipe: Recipe, call: Call, say: Say) -> Made:
    """Run every command, each different one once; raises what a command raises.

    What is done already the commands themselves leave as it is. Where a named one says what has to come next
    (`then`), that is run, and the command again. Their own output goes to stderr.
    """
    made = Made()
    done: dict[str, str] = {}
    for command in commands(recipe):
        words = filled(command, recipe, made.runs_of)
        words += ["--json"] if command.step.name else []
        line = shlex.join(words)
        if line not in done:
            told = _told(call, words, say, keep=command.step.name is not None)
            if then := next((record["then"] for record in _records(told) if "then" in record), None):
                _told(call, shlex.split(then)[1:], say, keep=False)
                told = _told(call, words, say, keep=True)
            done[line] = told
        if command.step.name:
            made.add(command, done[line])
    return made


def _told(call: Call, words: Sequence[str], say: Say, *, keep: bool) -> str:
    """What a command wrote to stdout, where it is kept; else it is passed on."""
    say(f"$ vlpipe {shlex.join(words)}")
    told = io.StringIO()
    with redirect_stdout(told if keep else sys.stderr):
        call(words)
    return told.getvalue()


def _records(told: str) -> list[dict[str, Any]]:
    """The lines that are JSON objects."""
    return [json.loads(line) for line in told.splitlines() if line.startswith("{")]
