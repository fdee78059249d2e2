"""Evaluate a finished run on a split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlpipe.evaluate.answers import Evaluation, Question
from vlpipe.evaluate.bootstrap import Bootstrap
from vlpipe.evaluate.contracts import TASKS, Task
from vlpipe.evaluate.scoring import inputs_of
from vlpipe.foundation.config import resolve
from vlpipe.foundation.errors import UnknownNameError
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
    cache: Path | None = None,
    options: Mapping[str, Any] | None = None,
    bootstrap: Bootstrap | None = None,
) -> Evaluation:
    """Evaluate one run on one split of its manifest ('all' for every image), or of another one's.

    Raises `UnknownNameError` for a run, task, split or option, `StaleError` where the cached features are not
    those that the run was made from, `VlpipeError` where the rows cannot answer the task.
    """
    task_class = TASKS.load(task_name)
    task: Task = task_class(resolve(task_class.Config, options or {}))
    run = Run.open(runs, run_id)
    joined = open_joined(run, manifest, cache)
    asked_of = read_description(manifest or run.manifest).digest
    question = Question(run, task_name, task, split, bootstrap or Bootstrap(), asked_of)
    return question.answer(inputs_of(run.head().double(), joined, _known(joined, split), task.roles))


def _known(joined: Joined, split: str) -> str | None:
    """The split, None for all images; raises `UnknownNameError` for one that no image has."""
    names = set(joined.split.tolist()) - {""} | {ALL}
    if canonical(split) not in names:
        raise UnknownNameError("split", split, names)
    return None if split == ALL else split
