"""Training one run: same inputs, same folder; a finished run is skipped, half a run resumed."""

from __future__ import annotations

import fcntl
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tomli_w
import torch
from torch import Tensor

from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.files import digest, file_digest, write_atomic
from vlpipe.foundation.progress import progress
from vlpipe.heads.checkpoint import CHECKPOINT, Checkpoint, save_tensors, weights_digest
from vlpipe.heads.checks import check_images, check_partial
from vlpipe.heads.contracts import Head, HeadConfig, Reported, Source
from vlpipe.heads.data import Joined
from vlpipe.heads.folder import CONFIG, FINISHED, STATUS, TRAINING, WEIGHTS, Run
from vlpipe.heads.loop import Learner, seeded, train
from vlpipe.heads.opening import Opener
from vlpipe.heads.stack import attempt, train_together

Action = Literal["trained", "skipped", "resumed"]


@dataclass(frozen=True)
class Adopted:
    """Weights that were trained elsewhere, and a digest of all that made them but seeds."""

    weights: dict[str, Tensor]
    lineage: str


@dataclass(frozen=True)
class Plan:
    """All that decides a run: the head by name and class, its settings, its rows and where these came from.

    Where weights are `adopted`, the head takes them as they are and nothing is trained.
    """

    kind: str
    head: type[Head]
    config: HeadConfig
    joined: Joined
    sources: dict[str, Source]
    opener: Opener
    adopted: Adopted | None = None

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
        if self.adopted is not None:
            decides["adopted"] = [self.adopted.lineage, weights_digest(self.adopted.weights)]
        name = re.sub(r"[^a-z0-9_]+", "-", self.kind.rpartition(":")[2].lower())
        return f"{name}-{digest(decides)[:12]}"

    def record(self) -> dict[str, Any]:
        """What config.toml holds; paths are absolute, so that a run can be evaluated from any folder."""
        shapes = self.joined.shapes()
        return ({} if self.adopted is None else {"adopted": self.adopted.lineage}) | {
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


@dataclass(frozen=True)
class _Begun:
    """A run's folder, taken, and what is to be trained in it."""

    plan: Plan
    head: Any
    folder: Path
    checkpoint: Checkpoint
    half: bool
    started: float

    def learner(self, device: str | torch.device) -> Learner:
        """The head in training."""
        return Learner(self.head, self.plan.joined, self.plan.config, self.checkpoint, device)


def train_run(plan: Plan, runs: Path, device: str | torch.device = "cpu") -> Outcome:
    """Train, resume or skip; raises `VlpipeError` when another process trains the same run now.

    What rows or shapes rule out is raised before the folder is made. A finished run with damaged files is trained
    again. Where it learns is no part of its identity.
    """
    with ExitStack() as locks:
        begun = _begin(plan, runs, locks)
        if isinstance(begun, Outcome):
            return begun
        return _end(begun, _adopt(begun.head, plan.adopted) if plan.adopted else train(begun.learner(device)))


def train_runs(plans: Sequence[Plan], runs: Path, device: str | torch.device = "cpu") -> list[Outcome | Exception]:
    """The same for plans of one `trait` on the same rows, trained as one; what became of each, or why it failed.

    Each is finished on disk as soon as it has ended. Ids, folders and files are those of the runs alone; results
    may differ by the rounding of batched kernels.
    """
    with ExitStack() as locks:
        begun = [attempt(partial(_begin, plan, runs, locks)) for plan in plans]
        outcomes = {n: one for n, one in enumerate(begun) if not isinstance(one, _Begun)}
        taken = [(n, one) for n, one in enumerate(begun) if isinstance(one, _Begun)]
        learners = [one.learner(device) for _, one in taken]
        with progress("training", sum(learner.steps * learner.config.epochs for learner in learners)) as advance:
            for place, end in train_together(learners, advance):
                number, one = taken[place]
                outcomes[number] = _ended(one, end)
        return [outcomes[number] for number in range(len(plans))]


def _ended(begun: _Begun, end: dict[str, float] | Exception) -> Outcome | Exception:
    return end if isinstance(end, Exception) else attempt(partial(_end, begun, end))


def _begin(plan: Plan, runs: Path, locks: ExitStack) -> Outcome | _Begun:
    """Take the run's folder, until the locks are left; the outcome where it is finished already."""
    check_images(plan.joined, plan.config)
    with seeded(plan.config.seed):
        head: Any = plan.head(plan.config, plan.joined.shapes())
    check_partial(plan.joined, plan.config)
    folder = runs / plan.run_id()
    folder.mkdir(parents=True, exist_ok=True)
    locks.enter_context(_alone(folder))
    finished = _finished(folder)
    if finished is not None:
        return Outcome(finished, "skipped")
    begun = _Begun(plan, head, folder, Checkpoint(folder), (folder / CHECKPOINT).exists(), time.monotonic())
    write_atomic(folder / CONFIG, tomli_w.dumps(plan.record()).encode("utf-8"))
    _write_status(folder, {"state": TRAINING, "rows": plan.joined.counts()})
    return begun


def _end(begun: _Begun, scalars: dict[str, float]) -> Outcome:
    """Write what training gave."""
    folder = begun.folder
    save_tensors(folder / WEIGHTS, begun.head.state_dict())
    _write_status(
        folder,
        {
            "state": FINISHED,
            "rows": begun.plan.joined.counts(),
            "scalars": scalars,
            "seconds": round(time.monotonic() - begun.started, 3),
            "weights": file_digest(folder / WEIGHTS),
        },
    )
    begun.checkpoint.discard()
    return Outcome(Run.read(folder), "resumed" if begun.half else "trained")


def _finished(folder: Path) -> Run | None:
    """The run when it is finished and whole."""
    try:
        run = Run.read(folder)
    except VlpipeError:
        return None
    return run if run.state == FINISHED and run.has_its_weights() else None


def _adopt(head: Any, adopted: Adopted) -> dict[str, float]:
    head.load_state_dict(adopted.weights)
    head.eval()
    return head.report() if isinstance(head, Reported) else {}


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
