"""One evaluation's numbers: rows kept with the run, entries in the ledger, nothing done twice."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vlpipe.evaluate import results
from vlpipe.evaluate.asked import Asked
from vlpipe.evaluate.bootstrap import Bootstrap
from vlpipe.evaluate.contracts import Inputs, Rows, Task
from vlpipe.evaluate.lineage import but_seeds
from vlpipe.evaluate.results import LEDGER, Entry, Provenance
from vlpipe.evaluate.saved import Saved, read_rows, write_rows
from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.files import digest

if TYPE_CHECKING:
    from vlpipe.heads.folder import Run


@dataclass(frozen=True)
class Evaluation:
    """One run's numbers for one task: ledger entries by metric, the per-query rows, what to tell the reader.

    `reused`: all was there already and nothing was computed or appended. `manifest` is the folder of the manifest.
    `apart` keeps its figures' names from those of the run's own manifest and split rule under default settings:
    empty for these, else `MANIFEST-DIGITS`, or `DIGITS` on the run's own manifest.
    """

    run: str
    task: str
    split: str
    entries: Mapping[str, Entry]
    rows: Rows
    path: Path
    reused: bool
    notes: list[str]
    made_by: Task
    manifest: Path
    apart: str = ""


@dataclass(frozen=True)
class Beside:
    """Another manifest, by digest, whose rows take part, and the rows asked for."""

    manifest: str
    asked: Asked

    def decides(self) -> dict[str, Any]:
        """All of it that decides a number."""
        return {
            "manifest": self.manifest,
            "content": self.asked.joined.content(),
            "left_out": self.asked.left_out(),
        }


def file_stem(*words: str) -> str:
    """A file's name of the words that are not empty, in characters that any file system takes."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(filter(None, words)))


@dataclass(frozen=True)
class Question:
    """One evaluation: what decides it, where its rows lie, and its numbers."""

    run: Run
    task_name: str
    task: Task
    split: str
    bootstrap: Bootstrap
    manifest: str  # digest
    asked: Asked
    folder: Path  # of the manifest
    beside: Beside | None = None

    def answer(self, inputs: Inputs) -> Evaluation:
        """The numbers, from the kept rows where they answer the same question; damaged ones are made again.

        Raises `VlpipeError` where the rows define no number at all.
        """
        self.task.check(inputs)
        identity = self.identity(inputs)
        path = self.path(identity)
        ledger = self.run.folder.parent / LEDGER
        kept, told = _kept(path, identity)
        entries = _recorded(ledger, digest(identity)) if kept is not None else {}
        reused = kept is not None and set(self.task.metric().summarise(kept.rows)) == set(entries)
        if kept is None:
            kept = Saved(self.task.metric().rows(inputs), identity, [*self.asked.notes(), *notes_of(inputs)])
            write_rows(path, kept, inputs.image_ids)
        rows = kept.rows
        if not reused:
            entries = self.entries(rows, digest(identity))
            results.append(ledger, entries.values())
        notes = [*told, *kept.notes, *self.task.notes({name: entry.value for name, entry in entries.items()})]
        if not entries:
            raise VlpipeError(
                f"task '{self.task_name}' gives no number of run '{self.run.id}': {'; '.join(notes)}"
            )
        asked = self.run.id, self.task_name, self.split
        named = [] if self.manifest == self.run.manifest_digest else [self.folder.resolve().name]
        apart = "-".join([*named, self.digits()])
        return Evaluation(*asked, entries, rows, path, reused, notes, self.task, self.folder, apart)

    def identity(self, inputs: Inputs) -> dict[str, Any]:
        """All that decides the rows and the numbers."""
        return {
            "run": self.run.id,
            "weights": self.run.status["weights"],
            "task": self.task_name,
            "split": self.split,
            "code": self.task.code,
            "version": version("vlpipe"),
            "options": self.options,
            "bootstrap": asdict(self.bootstrap),
            "manifest": self.manifest,
            "split_rule": self.asked.joined.rule,
            "content": self.asked.joined.content(),
            "left_out": self.asked.left_out(),
            "ids": digest([list(inputs.image_ids), list(inputs.text_ids)]),
            **({"beside": self.beside.decides()} if self.beside else {}),
        }

    @property
    def options(self) -> dict[str, Any]:
        """The task's settings, resolved, and which rows of another manifest take part."""
        settings: dict[str, Any] = self.task.config.model_dump(mode="json")
        return settings | ({"beside": self.beside.manifest[:12]} if self.beside else {})

    def path(self, identity: Mapping[str, Any]) -> Path:
        """`rows-TASK-SPLIT.parquet`; another manifest, split rule or options have a name of their own."""
        digits = self.digits()
        return self.run.folder / f"{file_stem('rows', self.task_name, self.split, digits)}.parquet"

    def digits(self) -> str:
        """Eight that stand for the manifest, split rule and options; none for the run's own ones and defaults."""
        plain = self.options == type(self.task).Config().model_dump(mode="json")
        rule = self.asked.joined.rule
        own = plain and (self.manifest, rule) == (self.run.manifest_digest, self.run.split_rule)
        return "" if own else digest([self.options, self.manifest, rule])[:8]

    def entries(self, rows: Rows, evaluation: str) -> dict[str, Entry]:
        """A ledger entry for each number."""
        metric = self.task.metric()
        resampled = getattr(metric, "resampled", True)
        intervals = self.bootstrap.intervals(rows, metric.summarise) if resampled else {}
        counts = metric.counts(rows)
        shared: dict[str, Any] = {
            "run": self.run.id,
            "task": self.task_name,
            "split": self.split,
            "provenance": self.provenance(evaluation),
            "version": version("vlpipe"),
            "commit": commit(),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        return {
            name: Entry(
                metric=name, value=value, interval=_listed(intervals.get(name)), rows=counts[name], **shared
            )
            for name, value in metric.summarise(rows).items()
        }

    def provenance(self, evaluation: str) -> Provenance:
        """What the numbers were made from."""
        return Provenance(
            evaluation=evaluation,
            but_seeds=but_seeds(self.run),
            kind=self.run.kind,
            code=self.run.record["code"],
            config=dict(self.run.config),
            sources=dict(self.run.sources),
            fingerprints=digest(self.run.fingerprints),
            split_rule=self.asked.joined.rule,
            manifest=self.manifest,
            content=self.asked.joined.content(),
            left_out=self.asked.left_out(),
            options=self.options,
            bootstrap=asdict(self.bootstrap),
        )


def notes_of(inputs: Inputs) -> list[str]:
    """What a reader must know of the rows: candidates that ask nothing, and zero vectors."""
    notes = []
    owners = inputs.text_image[np.array(inputs.columns["role"], dtype=object) == "caption"]
    texts = int((owners < 0).sum())
    images = len(inputs.image_ids) - len(np.unique(owners[owners >= 0]))
    if len(owners) and (images or texts):
        notes.append(f"{images} images without a text and {texts} texts without an image are candidates only")
    zeros = [f"{number} of role '{role}'" for role, number in inputs.zeros().items() if number]
    if zeros:
        notes.append(f"zero vectors: {', '.join(zeros)}")
    return notes


def _kept(path: Path, identity: Mapping[str, Any]) -> tuple[Saved | None, list[str]]:
    """Rows that answer the same question, and what to tell of a damaged file."""
    if not path.exists():
        return None, []
    try:
        saved = read_rows(path)
    except VlpipeError:
        return None, [f"'{path}' was damaged; its rows are computed again"]
    return (saved if saved.identity == identity else None), []


def _recorded(ledger: Path, evaluation: str) -> dict[str, Entry]:
    entries = results.read(ledger)
    return {entry.metric: entry for entry in entries if entry.provenance.evaluation == evaluation}


def _listed(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


def commit() -> str | None:
    """The checkout's commit, with `-dirty` where files differ from it; None for an installed package."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
