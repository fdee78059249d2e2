"""A run's folder: what a head was trained from, its weights, its log, and whether it is finished."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from vlpipe.foundation.config import read_toml, resolve
from vlpipe.foundation.errors import StaleError, UnknownNameError, VlpipeError
from vlpipe.foundation.files import file_digest
from vlpipe.heads.checkpoint import load_tensors, load_weights
from vlpipe.heads.contracts import Head, HeadConfig, Role, Shapes, Table, load_head, roles_of

CONFIG, WEIGHTS, STATUS = "config.toml", "head.safetensors", "status.json"
FINISHED, TRAINING = "finished", "training"
RECORD: dict[str, type] = {  # what config.toml must hold
    "kind": str,
    "code": int,
    "manifest": str,
    "manifest_digest": str,
    "cache": str,
    "split_rule": str,
    "config": dict,
    "sources": dict,
    "shapes": dict,
    "provenance": dict,
}


@dataclass(frozen=True)
class Run:
    """One run, read from its folder. `record` is config.toml, `status` is status.json."""

    folder: Path
    record: dict[str, Any]
    status: dict[str, Any]

    @classmethod
    def open(cls, runs: Path, run_id: str) -> Run:
        """A finished run. Raises `UnknownNameError` with the nearest id, `VlpipeError` for one half done."""
        folder = runs / run_id
        if folder.parent != runs or not (folder / CONFIG).is_file():
            raise UnknownNameError("run", run_id, [path.name for path in _folders(runs)])
        run = cls.read(folder)
        if run.state != FINISHED:
            raise VlpipeError(
                f"run '{run_id}' in '{runs}' is not finished; repeat its `vlpipe train-head` command to resume it"
            )
        return run

    @classmethod
    def read(cls, folder: Path) -> Run:
        """A run in any state; raises `VlpipeError` when its files are missing or damaged."""
        path = folder / STATUS
        try:
            status = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            status = {"state": TRAINING}
        except ValueError:
            status = None
        if not isinstance(status, dict) or not all(
            isinstance(status.get(n, {}), dict) for n in ("scalars", "rows")
        ):
            raise VlpipeError(f"'{path}' is damaged; delete '{folder}' and train again")
        record = read_toml(folder / CONFIG)
        lacking = [name for name, kind in RECORD.items() if not isinstance(record.get(name), kind)]
        if lacking:
            raise VlpipeError(
                f"'{folder / CONFIG}' is damaged (no {', '.join(lacking)}); delete '{folder}' and train again"
            )
        return cls(folder, record, status)

    @classmethod
    def list(cls, runs: Path, tell: Callable[[VlpipeError], None] | None = None) -> list[Run]:
        """Every run in a folder, by id, finished or not, but for damaged ones: `tell` gets each one's error."""
        found = []
        for folder in _folders(runs):
            try:
                found.append(cls.read(folder))
            except VlpipeError as error:
                if tell is not None:
                    tell(error)
        return found

    @property
    def id(self) -> str:
        """The folder's name, `<kind>-<hash>`."""
        return self.folder.name

    @property
    def state(self) -> str:
        """'finished' or 'training'."""
        return str(self.status.get("state", TRAINING))

    @property
    def kind(self) -> str:
        """The head's name on the shelf, or `module:Class`."""
        return str(self.record["kind"])

    @property
    def config(self) -> dict[str, Any]:
        """The head's resolved settings."""
        return dict(self.record["config"])

    @property
    def scalars(self) -> dict[str, float]:
        """What the last epoch logged, but for the learning rate, and what the head reports of itself."""
        return dict(self.status.get("scalars", {}))

    @property
    def manifest(self) -> Path:
        """The manifest's folder, absolute, where it was at training."""
        return Path(self.record["manifest"])

    @property
    def manifest_digest(self) -> str:
        """Identity of the manifest's rows."""
        return str(self.record["manifest_digest"])

    @property
    def cache(self) -> Path:
        """The cache's folder, absolute, where it was at training."""
        return Path(self.record["cache"])

    @property
    def split_rule(self) -> str:
        """'column', or the random rule."""
        return str(self.record["split_rule"])

    @property
    def sources(self) -> dict[str, str]:
        """By role: where its rows came from, as it is written: SPEC#OUTPUT::RUN."""
        return dict(self.record["sources"])

    @property
    def provenance(self) -> dict[str, dict[str, Any]]:
        """By role: output, fingerprint, dtype at rest, digest of what was encoded, upstream runs and weights."""
        return dict(self.record["provenance"])

    @property
    def fingerprints(self) -> dict[str, dict[str, str]]:
        """By role: fingerprint of the cached features."""
        return {role: dict(found["fingerprint"]) for role, found in self.provenance.items()}

    @cached_property
    def head_class(self) -> type[Head]:
        """The class; raises `StaleError` when its code has changed since, in a way that changes weights."""
        found = load_head(self.kind)
        if found.code != self.record["code"]:
            raise StaleError(
                f"run '{self.id}' was trained by version {self.record['code']} of head '{self.kind}', this is "
                f"version {found.code}; train it again"
            )
        return found

    @cached_property
    def settings(self) -> HeadConfig:
        """The settings as the head's own model."""
        return resolve(self.head_class.Config, self.config)

    @property
    def roles(self) -> dict[str, Role]:
        """What the head reads."""
        return dict(roles_of(self.head_class, self.settings))

    def shapes(self) -> Shapes:
        """What the head was built from, tables with zeros for rows; raises what opening a run under it raises."""
        rows = {role: tuple(shape) for role, shape in self.record["shapes"].items()}
        texts = self.record.get("tables", {})
        tables = {role: Table(names, torch.zeros(len(names), *rows[role])) for role, names in texts.items()}
        heads = {name: self._under(name).head() for name, role in self.roles.items() if role.stands}
        return Shapes(rows, self.record.get("constants", {}), tables, heads)

    def _under(self, role: str) -> Run:
        """The run that a role stands on, beside this one; raises `StaleError` when it has other weights now."""
        run_id, _, weights = self.provenance[role]["through"][-1].partition("@")
        run = Run.open(self.folder.parent, run_id)
        if run.status["weights"] != weights:
            raise StaleError(
                f"run '{self.id}' stands on run '{run_id}', which has been trained again since and has other "
                "weights; train this one again, too"
            )
        return run

    def has_its_weights(self) -> bool:
        """Whether the weights' file is the one that training wrote."""
        path = self.folder / WEIGHTS
        return path.is_file() and file_digest(path) == self.status.get("weights")

    def head(self) -> Any:
        """The trained head (also an `nn.Module`) in evaluation mode; raises `VlpipeError` for damaged weights."""
        path, remedy = self.folder / WEIGHTS, f"delete '{self.folder}' and train again"
        weights = load_tensors(path, remedy)
        if not self.has_its_weights():
            raise VlpipeError(f"'{path}' is damaged (not the file that training wrote); {remedy}")
        head: Any = self.head_class(self.settings, self.shapes())
        load_weights(head, weights, path, remedy)
        return head.eval()


def _folders(runs: Path) -> list[Path]:
    """Those that hold a run, by name; none is read."""
    return sorted(path.parent for path in runs.glob(f"*/{CONFIG}"))
