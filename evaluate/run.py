"""Evaluate a finished run on a split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlpipe.cache_store.layout import Side
from vlpipe.evaluate.answers import Evaluation, Question
from vlpipe.evaluate.asked import Asked
from vlpipe.evaluate.bootstrap import Bootstrap
from vlpipe.evaluate.contracts import TASKS, Task
from vlpipe.evaluate.scoring import inputs_of
from vlpipe.foundation.config import resolve
from vlpipe.foundation.errors import UnknownNameError, UsageError
from vlpipe.heads.contracts import roles_on
from vlpipe.heads.data import Joined
from vlpipe.heads.runs import Run, open_joined
from vlpipe.heads.splits import canonical
from vlpipe.manifests.manifest import read_description

ALL = "all"
SIDES: tuple[Side, ...] = ("image", "text")


class OneSidedError(UsageError):
    """A run that has nothing to score: its head reads images alone, or texts alone."""


def evaluate(
    runs: Path,
    run_id: str,
    task_name: str = "retrieval",
    split: str = "test",
    *,
    manifest: Path | None = None,
    cache: Path | None = None,
    options: Mapping[str, Any] | None = None,
    bootstrap: Bootstrap | None = None,
) -> Evaluation:
    """Evaluate one run on one split of its manifest ('all' for every image), or of another one's.

    Raises `UnknownNameError` for a run, task, split or option, `OneSidedError` for a run without images or
    texts, `StaleError` where the cached features are not those that the run was made from, `NotCachedError` where
    rows of the split were never encoded, `VlpipeError` where the rows cannot answer the task.
    """
    task = chosen_task(task_name, options or {})
    run = Run.open(runs, run_id)
    check_sides(run)
    joined = open_joined(run, manifest, cache)
    folder = manifest or run.manifest
    asked = Asked.of(joined, _known(joined, split), task.roles, folder)
    asked.check_encoded()
    digest = read_description(folder).digest
    question = Question(run, task_name, task, split, bootstrap or Bootstrap(), digest, asked)
    return question.answer(inputs_of(run.head().double(), asked, task, folder))


def chosen_task(name: str, options: Mapping[str, Any]) -> Task:
    """A task with its settings; raises `UnknownNameError` for either."""
    task_class = TASKS.load(name)
    task: Task = task_class(resolve(task_class.Config, options))
    return task


def check_sides(run: Run) -> None:
    """Raise `OneSidedError` for a run without image roles or without text roles."""
    for side in SIDES:
        if not roles_on(run.roles, side):
            raise OneSidedError(
                f"run '{run.id}' reads no {side}s, so it scores nothing; train a head of both sides on its rows "
                f"(--source ROLE=SPEC#OUTPUT::{run.id}) and evaluate that one"
            )


def _known(joined: Joined, split: str) -> str | None:
    """The split, None for all images; raises `UnknownNameError` for one that no image has."""
    names = set(joined.split.tolist()) - {""} | {ALL}
    if canonical(split) not in names:
        raise UnknownNameError("split", split, names)
    return None if split == ALL else split
