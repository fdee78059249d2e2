"""What `vlpipe cache verify` does to one store, and how it tells it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vlpipe.cache_store.errors import CacheReadError
from vlpipe.cache_store.group import Group
from vlpipe.cache_store.stores import store_info
from vlpipe.cache_store.verify import Damage, leftovers, store_ids, verify_store
from vlpipe.extract.contracts import Encoder
from vlpipe.extract.recheck import Sample, is_imported, recompute, replaced_content
from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.progress import progress
from vlpipe.manifests.manifest import Manifest

SHOWN = 3  # ids a damage
LINES = 50  # damages a store
UNREAD = "what else is wrong with the store is not known"


@dataclass(frozen=True)
class Checks:
    """What is checked beside checksums: content against `manifest`, `count` sampled rows against `encoder`."""

    manifest: Manifest | None = None
    encoder: Encoder | None = None
    count: int = 0
    tolerance: float | None = None
    workers: int = 1


@dataclass(frozen=True)
class Report:
    """One store: its damage, notes on what is none, and the words for a store that is right."""

    store: Path
    damage: list[Damage]
    notes: list[str] = field(default_factory=list)
    words: str = ""
    sample: Sample | None = None

    def record(self) -> dict[str, Any]:
        """For `--json`: every damage with all ids of its rows."""
        ids = store_ids(self.store) if self.damage else None
        return {
            "store": str(self.store),
            "ok": not self.damage,
            "damage": [_record(damage, ids) for damage in self.damage],
            "notes": self.notes,
            "compared": self.sample.rows if self.sample else 0,
            "worst": dict(self.sample.worst) if self.sample else {},
        }

    def lines(self) -> Iterator[str]:
        """For people: one line where all is right, else a line a damage, with its first ids."""
        if not self.damage:
            yield f"{self.store}: ok, {self.words}"
            return
        yield f"{self.store}: {len(self.damage)} damaged"
        ids = store_ids(self.store)
        for damage in self.damage[:LINES]:
            yield f"  {_line(damage, self.store, ids)}"
        if len(self.damage) > LINES:
            yield f"  and {len(self.damage) - LINES} more; --json lists all"
        for todo in dict.fromkeys(damage.todo for damage in self.damage):
            yield f"  {todo}"


def check(store: Path, checks: Checks) -> Report:
    """Check one store; raises `NotCachedError`, `StaleCacheError` for another encoder than the store's.

    What the system refuses to read is told as damage: other stores are still checked.
    """
    try:
        with progress(f"verify {store.name}", None) as advance:
            damage = verify_store(store, advance)
    except CacheReadError as error:
        return Report(store, [Damage(store, "", range(0), str(error), UNREAD)])
    imported = _imported(store)
    if imported:
        damage = [
            replace(found, todo=found.todo.replace("vlpipe extract", "vlpipe cache import")) for found in damage
        ]
    notes = [f"{_short(path, store)} is a killed or a running writer's, and harmless" for path in leftovers(store)]
    sample = None
    if checks.manifest:
        why = _not_comparable(store, checks.manifest, imported)
        notes += [why] if why else []
        if not why:
            unread: list[int] = []
            damage += replaced_content(store, checks.manifest, checks.workers, unread)
            if unread:
                notes.append(f"{len(unread)} pictures cannot be read, so that their rows were not compared")
            sample = _sample(store, checks)
            damage += sample.damage if sample else []
    return Report(store, damage, notes, _words(store, sample) if not damage else "", sample)


def _sample(store: Path, checks: Checks) -> Sample | None:
    if checks.manifest is None or checks.encoder is None or not checks.count:
        return None
    return recompute(
        store, checks.manifest, checks.encoder, checks.count, tolerance=checks.tolerance, workers=checks.workers
    )


def _imported(store: Path) -> bool | None:
    """Whether the features were made elsewhere; None where damaged metadata does not tell."""
    try:
        return is_imported(store) if Group.open(store) else None
    except VlpipeError:
        return None


def _not_comparable(store: Path, manifest: Manifest, imported: bool | None) -> str:
    if imported is None:
        return "its content was not compared, for its metadata is damaged"
    if imported:
        return "its features were imported: there is nothing to compare them with"
    if Group.open(store).manifest != manifest.digest:
        return f"it is of another manifest than '{manifest.folder}': its content was not compared"
    return ""


def _short(file: Path, store: Path) -> Path:
    return file.relative_to(store) if file.is_relative_to(store) else file


def _words(store: Path, sample: Sample | None) -> str:
    """`200 rows of pooled, tokens`, how many of them failed, and what is not there yet."""
    info = store_info(store)
    words = f"{info.rows:,} rows of {', '.join(info.outputs) or 'no output'}"
    if info.failed:
        words += f", {info.failed:,} of them failed"
    absent = {name: info.rows - output.committed_rows for name, output in info.outputs.items()}
    if any(absent.values()):
        words += f", not encoded yet: {', '.join(f'{rows:,} of {name}' for name, rows in absent.items() if rows)}"
    if sample:
        worst = ", ".join(f"{name} {value:.2g}" for name, value in sample.worst.items())
        words += f"; {sample.rows} rows encoded again, largest distance {worst}"
    return words


def _line(damage: Damage, store: Path, ids: Any) -> str:
    file = _short(damage.file, store)
    where = f"{file} {damage.what}" if file.name else damage.what
    rows = damage.rows
    if not rows:
        return where
    span = f"row {rows.start}" if len(rows) == 1 else f"rows {rows.start} to {rows.stop - 1}"
    named = ", ".join(f"'{name}'" for name in _ids(damage, ids, SHOWN))
    more = f" and {len(rows) - SHOWN} more" if named and len(rows) > SHOWN else ""
    return f"{where}; {span}{f': {named}{more}' if named else ''}"


def _record(damage: Damage, ids: Any) -> Mapping[str, Any]:
    return {
        "file": str(damage.file),
        "output": damage.output,
        "rows": [damage.rows.start, damage.rows.stop],
        "ids": _ids(damage, ids, len(damage.rows)),
        "what": damage.what,
        "todo": damage.todo,
    }


def _ids(damage: Damage, ids: Any, most: int) -> Iterable[str]:
    return [] if ids is None else list(ids.slice(damage.rows.start, min(most, len(damage.rows))).to_pylist())
