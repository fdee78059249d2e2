"""The ledger of all numbers: append-only, one line a number, the latest counts."""

from __future__ import annotations

import fcntl
import json
import sys
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
    """What a number was made from.

    `evaluation` is the digest of all that decides it, `but_seeds` that of all that made the run but its seed and
    those of the runs upstream of it.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    evaluation: str
    but_seeds: str
    kind: str
    code: int  # the head's version
    config: dict[str, Any]
    sources: dict[str, str]  # by role, as they are written: SPEC#OUTPUT::RUN
    fingerprints: str  # digest
    split_rule: str  # by which the split's images were chosen
    manifest: str  # digest
    content: dict[str, str]  # digest of what was encoded, by role
    left_out: dict[str, int] = {}  # `images` and `texts` of the split that failed; {} in older ledgers
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
        made = self.provenance
        options = canonical_json(made.options)
        return self.run, self.task, self.split, made.split_rule, made.manifest, options, self.metric


def append(ledger: Path, entries: Iterable[Entry]) -> None:
    """Add entries; a last line that a kill tore is dropped first. Other processes that append wait."""
    ledger.parent.mkdir(parents=True, exist_ok=True)
    with ledger.open("ab", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        held = ledger.read_bytes()
        last = held.rpartition(b"\n")[2]
        if _is_torn(last):
            file.truncate(len(held) - len(last))
        elif last:
            file.write(b"\n")
        for entry in entries:
            append_line(ledger, entry.model_dump())


def _is_torn(last: bytes) -> bool:
    """Whether what follows the last newline is the start of a line whose writer was killed.

    No start of a JSON object is itself JSON; what is JSON and no entry was put there by something else.
    """
    try:
        json.loads(last)
    except ValueError:
        return bool(last)
    return False


def read(ledger: Path) -> list[Entry]:
    """All entries in order; none when there is no ledger.

    A last line that a kill tore is left out, with a warning on stderr. Raises `VlpipeError` that names any other
    bad line.
    """
    if not ledger.exists():
        return []
    *lines, last = ledger.read_bytes().split(b"\n")  # of all line ends only this one is never inside an entry
    if _is_torn(last):
        number = len(lines) + 1
        sys.stderr.write(f"warning: {ledger} line {number} is torn (its writer was killed) and left out\n")
    elif last:
        lines.append(last)
    return [_parsed(ledger, number, line) for number, line in enumerate(lines, start=1)]


def _parsed(ledger: Path, number: int, line: bytes) -> Entry:
    try:
        return Entry.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise VlpipeError(
            f"{ledger} line {number} is not a result ({where + ': ' if where else ''}{first['msg']}); "
            "mend or delete this line"
        ) from None


def latest(entries: Iterable[Entry]) -> list[Entry]:
    """The last entry of each key, in the order in which the keys first came."""
    last: dict[tuple[str, ...], Entry] = {}
    for entry in entries:
        last[entry.key] = entry
    return list(last.values())


def intervals_of(entries: Iterable[Entry]) -> str:
    """Which intervals the entries hold, in words: '95 % bootstrap intervals over images'."""
    levels = sorted({entry.provenance.bootstrap["level"] for entry in entries if entry.interval is not None})
    named = " and ".join(f"{100 * level:g} %" for level in levels)
    return f"{named} bootstrap intervals over images" if levels else "no intervals"


@dataclass(frozen=True)
class Line:
    """A table's line: the numbers of one evaluation by metric, or their spread over `n` seeds.

    `made` is the provenance of one of them: all have the same split rule, manifest, content and options.
    """

    name: str
    task: str
    split: str
    numbers: dict[str, Entry | Spread]
    made: Provenance


def by_run(entries: Sequence[Entry]) -> list[Line]:
    """One line for each run, task, split, split rule, manifest and options; sorted, for `latest` entries."""
    groups = _grouped(entries, lambda e: e.key[:-1])
    return [Line(g[0].run, g[0].task, g[0].split, {e.metric: e for e in g}, g[0].provenance) for g in groups]


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
        lines.append(Line(name, group[0].task, group[0].split, numbers, group[0].provenance))
    return lines


def _without_seed(entry: Entry) -> tuple[str, ...]:
    made = entry.provenance
    return made.but_seeds, canonical_json(made.content), *entry.key[1:-1]


def _grouped(entries: Sequence[Entry], key: Any) -> list[list[Entry]]:
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return list(groups.values())
