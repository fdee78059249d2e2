"""The ledger of all numbers: append-only, one line a number, the latest counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from vlpipe.evaluate.bootstrap import Spread, spread
from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.files import append_line, canonical_json

LEDGER = "results.jsonl"


class Provenance(BaseModel):
    """What a number was made from. `evaluation` is the digest of all that decides it."""

    model_config = ConfigDict(frozen=True, strict=True)

    evaluation: str
    kind: str
    config: dict[str, Any]
    sources: dict[str, str]  # by role, as they are written: SPEC#OUTPUT::RUN
    fingerprints: str  # digest
    manifest: str  # digest
    options: dict[str, Any]
    bootstrap: dict[str, Any]


class Entry(BaseModel):
    """One number. Recalls are shares in [0, 1]; `rows` are the queries or images behind it."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    run: str
    task: str
    split: str
    metric: str
    value: float
    interval: list[float] | None
    rows: int
    provenance: Provenance
    version: str
    commit: str | None
    time: str

    @property
    def key(self) -> tuple[str, ...]:
        """Entries of one key replace each other, the last one counts."""
        options = canonical_json(self.provenance.options)
        return self.run, self.task, self.split, self.provenance.manifest, options, self.metric


def append(ledger: Path, entries: Iterable[Entry]) -> None:
    """Add entries; a last line that a crash left unfinished is closed first, so that only it is lost."""
    if ledger.exists() and ledger.stat().st_size:
        with ledger.open("rb+") as file:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
    for entry in entries:
        append_line(ledger, entry.model_dump())


def read(ledger: Path) -> list[Entry]:
    """All entries in order; none when there is no ledger. Raises `VlpipeError` that names a bad line."""
    if not ledger.exists():
        return []
    entries = []
    for number, line in enumerate(ledger.read_bytes().splitlines(), start=1):
        try:
            entries.append(Entry.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise VlpipeError(
                f"{ledger} line {number} is not a result ({where + ': ' if where else ''}{first['msg']}); "
                "mend or delete this line"
            ) from None
    return entries


def latest(entries: Iterable[Entry]) -> list[Entry]:
    """The last entry of each key, in the order in which the keys first came."""
    last: dict[tuple[str, ...], Entry] = {}
    for entry in entries:
        last[entry.key] = entry
    return list(last.values())


@dataclass(frozen=True)
class Line:
    """A table's line: the numbers of one evaluation by metric, or their spread over `n` seeds."""

    name: str
    task: str
    split: str
    numbers: dict[str, Entry | Spread]


def by_run(entries: Sequence[Entry]) -> list[Line]:
    """One line for each run, task, split, manifest and options; sorted, for `latest` entries."""
    groups = _grouped(entries, lambda e: e.key[:-1])
    return [Line(g[0].run, g[0].task, g[0].split, {e.metric: e for e in g}) for g in groups]


def over_seeds(entries: Sequence[Entry]) -> list[Line]:
    """One line for the runs that differ in nothing but their seed: mean and sample standard deviation."""
    lines = []
    for group in _grouped(entries, _without_seed):
        metrics = dict.fromkeys(e.metric for e in group)
        runs = dict.fromkeys(e.run for e in group)
        numbers: dict[str, Entry | Spread] = {
            m: spread([e.value for e in group if e.metric == m]) for m in metrics
        }
        name = group[0].run if len(runs) == 1 else f"{group[0].provenance.kind}, {len(runs)} seeds"
        lines.append(Line(name, group[0].task, group[0].split, numbers))
    return lines


def _without_seed(entry: Entry) -> tuple[str, ...]:
    made = entry.provenance
    config = {key: value for key, value in made.config.items() if key != "seed"}
    parts = (made.kind, config, made.sources, made.fingerprints)
    return canonical_json(parts), *entry.key[1:-1]


def _grouped(entries: Sequence[Entry], key: Any) -> list[list[Entry]]:
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return list(groups.values())
