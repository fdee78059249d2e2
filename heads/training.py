"""Training one run: same inputs, same folder; a finished run is skipped, half a run resumed."""

from __future__ import annotations

import fcntl
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w

from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.files import digest, file_digest, write_atomic
from vlpipe.heads.checkpoint import Checkpoint, save_tensors
from vlpipe.heads.contracts import Head, HeadConfig, Source
from vlpipe.heads.data import Joined
from vlpipe.heads.folder import CONFIG, FINISHED, STATUS, TRAINING, WEIGHTS, Run
from vlpipe.heads.loop import check_images, check_partial, seeded, train
from vlpipe.heads.opening import Opener

Action = Literal["trained", "skipped", "resumed"]


@dataclass(frozen=True)
class Plan:
    """All that decides a run: the head by name and class, its settings, its rows and where these came from."""

    kind: str
    head: type[Head]
    config: HeadConfig
    joined: Joined
    sources: dict[str, Source]
    opener: Opener

    def settings(self) -> dict[str, Any]:
        """The resolved settings, without those that are None, which TOML cannot say."""
        return self.config.model_dump(exclude_none=True)

    def provenance(self) -> dict[str, Any]:
        """By role: what its rows were made by."""
        return {role: rows.provenance for role, rows in self.joined.sources.items()}

    def run_id(self) -> str:
        """`<kind>-<hash>`, of everything that decides the weights and of no path."""
        decides = {
            "kind": self.kind,
            "code": self.head.code,
            "config": self.settings(),
            "provenance": self.provenance(),
            "manifest": self.opener.manifest.digest,
            "split_rule": self.joined.rule,
            "rows": self.joined.digest(),
        }
        name = re.sub(r"[^a-z0-9_]+", "-", self.kind.rpartition(":")[2].lower())
        return f"{name}-{digest(decides)[:12]}"

    def record(self) -> dict[str, Any]:
        """What config.toml holds; paths are absolute, so that a run can be evaluated from any folder."""
        shapes = self.joined.shapes()
        return {
            "kind": self.kind,
            "code": self.head.code,
            "manifest": str(self.opener.manifest.folder.resolve()),
            "manifest_digest": self.opener.manifest.digest,
            "cache": str(self.opener.cache.resolve()),
            "split_rule": self.joined.rule,
            "config": self.settings(),
            "sources": {role: self._written(role) for role in self.sources},
            "shapes": {role: list(shape) for role, shape in shapes.rows.items()},
            "provenance": self.provenance(),
            "constants": {role: dict(found) for role, found in shapes.constants.items()},
            "tables": {role: list(table.texts) for role, table in shapes.tables.items()},
        }

    def _written(self, role: str) -> str:
        """The source with its output's name, also where the store's only output was meant."""
        source = self.sources[role]
        spec = source.output.partition("#")[0]
        return "::".join([f"{spec}#{self.joined.sources[role].features.output}", *source.through])


@dataclass(frozen=True)
class Outcome:
    """What became of one plan."""

    run: Run
    action: Action


def train_run(plan: Plan, runs: Path) -> Outcome:
    """Train, resume or skip; raises `VlpipeError` when another process trains the same run now.

    What rows or shapes rule out is raised before the folder is made. A finished run with damaged files is trained
    again.
    """
    check_images(plan.joined, plan.config)
    with seeded(plan.config.seed):
        head: Any = plan.head(plan.config, plan.joined.shapes())
    check_partial(plan.joined, plan.config)
    folder = runs / plan.run_id()
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        finished = _finished(folder)
        if finished is not None:
            return Outcome(finished, "skipped")
        checkpoint = Checkpoint(folder)
        half = checkpoint.path.exists()
        _train(plan, head, folder, checkpoint)
        return Outcome(Run.read(folder), "resumed" if half else "trained")


def _finished(folder: Path) -> Run | None:
    """The run when it is finished and whole."""
    try:
        run = Run.read(folder)
    except VlpipeError:
        return None
    return run if run.state == FINISHED and run.has_its_weights() else None


def _train(plan: Plan, head: Any, folder: Path, checkpoint: Checkpoint) -> None:
    started = time.monotonic()
    write_atomic(folder / CONFIG, tomli_w.dumps(plan.record()).encode("utf-8"))
    _write_status(folder, {"state": TRAINING, "rows": plan.joined.counts()})
    scalars = train(head, plan.joined, plan.config, checkpoint)
    save_tensors(folder / WEIGHTS, head.state_dict())
    _write_status(
        folder,
        {
            "state": FINISHED,
            "rows": plan.joined.counts(),
            "scalars": scalars,
            "seconds": round(time.monotonic() - started, 3),
            "weights": file_digest(folder / WEIGHTS),
        },
    )
    checkpoint.discard()


def _write_status(folder: Path, status: dict[str, Any]) -> None:
    write_atomic(folder / STATUS, (json.dumps(status, indent=2, allow_nan=False) + "\n").encode("utf-8"))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """A lock that dies with the process."""
    with (folder / ".lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise VlpipeError(
                f"run '{folder.name}' is being trained by another process; wait for it, or change a setting"
            ) from None
        yield
