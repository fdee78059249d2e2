"""Evaluate a finished run on a split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlpipe.evaluate.answers import Beside, Evaluation, Question
from vlpipe.evaluate.asked import Asked
from vlpipe.evaluate.bootstrap import Bootstrap
from vlpipe.evaluate.contracts import TASKS, NothingToScoreError, Task
from vlpipe.evaluate.scoring import inputs_of
from vlpipe.foundation.config import resolve
from vlpipe.foundation.errors import UnknownNameError, UsageError
from vlpipe.heads.contracts import roles_on
from vlpipe.heads.data import Joined
from vlpipe.heads.runs import Run, open_joined
from vlpipe.heads.splits import canonical
from vlpipe.manifests.manifest import read_description

ALL = "all"


def evaluate(
    runs: Path,
    run_id: str,
    task_name: str = "retrieval",
    split: str = "test",
    *,
    manifest: Path | None = None,
    beside: Path | None = None,
    cache: Path | None = None,
    options: Mapping[str, Any] | None = None,
    bootstrap: Bootstrap | None = None,
) -> Evaluation:
    """Evaluate one run on one split of its manifest ('all' for every image), or of another one's.

    `beside` is a manifest whose rows, of all splits, take part as unrelated ones in a task that reads them.

    Raises `UnknownNameError` for a run, task, split or option, `NothingToScoreError` for a run that has nothing
    to score, `StaleError` where the cached features are not those that the run was made from, `NotCachedError`
    where rows of the split were never encoded, `VlpipeError` where the rows cannot answer the task.
    """
    task = chosen_task(task_name, options or {})
    run = Run.open(runs, run_id)
    check_sides(run, task)
    check_scored(run, task)
    joined = open_joined(run, manifest, cache)
    folder = manifest or run.manifest
    asked = Asked.of(joined, _known(joined, split), task.roles, folder)
    asked.check_encoded()
    digest = read_description(folder).digest
    other = None if beside is None else _beside(run, task, beside, cache)
    question = Question(run, task_name, task, split, bootstrap or Bootstrap(), digest, asked, folder, other)
    head = run.head().double()
    inputs = inputs_of(head, asked, task, folder)
    if other is not None and beside is not None:
        inputs = replace(inputs, beside=inputs_of(head, other.asked, task, beside))
    try:
        return question.answer(inputs)
    except NothingToScoreError as error:
        raise NothingToScoreError(f"run '{run_id}': {error}") from None


def _beside(run: Run, task: Task, manifest: Path, cache: Path | None) -> Beside:
    """Every image and text of another manifest; raises `UsageError` for a task that has no use for them."""
    if task.scored:
        raise UsageError("--beside names unrelated rows, which only tasks of whole sets read: --task alignment")
    asked = Asked.of(open_joined(run, manifest, cache), None, task.roles, manifest)
    asked.check_encoded()
    return Beside(read_description(manifest).digest, asked)


def chosen_task(name: str, options: Mapping[str, Any]) -> Task:
    """A task with its settings; raises `UnknownNameError` for either."""
    task_class = TASKS.load(name)
    task: Task = task_class(resolve(task_class.Config, options))
    return task


def check_sides(run: Run, task: Task) -> None:
    """Raise `NothingToScoreError` for a run without image roles, or text roles, where the task needs them."""
    for side in task.sides:
        if not roles_on(run.roles, side):
            raise NothingToScoreError(
                f"run '{run.id}' reads no {side}s, so it scores nothing; train a head of both sides on its rows "
                f"(--source ROLE=SPEC#OUTPUT::{run.id}) and evaluate that one"
            )


def check_scored(run: Run, task: Task) -> None:
    """Raise `NothingToScoreError` for a run whose head scores nothing, where the task needs scores."""
    if task.scored and not hasattr(run.head_class, "score"):
        raise NothingToScoreError(
            f"run '{run.id}' holds features as they are and scores nothing; --task alignment reads it"
        )


def _known(joined: Joined, split: str) -> str | None:
    """The split, None for all images; raises `UnknownNameError` for one that no image has."""
    names = set(joined.split.tolist()) - {""} | {ALL}
    if canonical(split) not in names:
        raise UnknownNameError("split", split, names)
    return None if split == ALL else split
