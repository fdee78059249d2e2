"""Rows of a manifest from tables of any column names.

The policy for absent values: a value that is missing, null, empty or only white space is absent. An absent
caption is an error that names the lines, or left out and counted where that is asked for; another absent value
is null. Texts are otherwise kept to the letter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.readers import read_columns, read_records
from vlpipe.manifests.schema import IMAGES, TEXTS, Table

NAMES_SHOWN = 5
ALIASES: Mapping[str, Sequence[str]] = {
    "path": ("path", "image"),
    "text": ("text", "caption", "captions"),
}


class Records(Protocol):
    """Where rows are read from."""

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Where each record stands, and its values under the manifest's column names; any number of times."""
        ...


@dataclass
class Source:
    """One table, and which of its columns stands for which of the manifest's.

    `columns` maps the manifest's names to the table's; `renames` that it does not have are left to the other
    table. Raises `VlpipeError` where the rows need a column that is not there.
    """

    path: Path
    table: Table
    renames: Mapping[str, str] = field(default_factory=dict)
    found: list[str] = field(init=False)
    columns: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.found = read_columns(self.path)
        own = {name: next(iter(self._present(name)), None) for name in self.table.required}
        self.columns = {name: column for name, column in own.items() if column is not None}
        needed = "path" if self.table is IMAGES else "text"
        if needed not in self.columns:
            raise self._missing(needed)

    def _present(self, name: str) -> list[str]:
        """The table's columns that can stand for `name`, the likeliest first."""
        if name in self.renames:
            names: Sequence[str] = (self.renames[name],)
        elif name == "image_id":  # an image without an id of its own is named by its path
            names = ("image_id", self.renames.get("path", "path"), *ALIASES["path"])
        else:
            names = ALIASES.get(name, (name,))
        return [column for column in names if column in self.found]

    def _missing(self, name: str) -> VlpipeError:
        if name in self.renames:
            return UnknownNameError(f"column of '{self.path}'", self.renames[name], self.found)
        near = get_close_matches(name, self.found, n=1)
        return VlpipeError(
            f"'{self.path}' has no column for {name} (looked for {', '.join(ALIASES[name])}); "
            + (f"did you mean '{near[0]}'? " if near else "")
            + f"its columns: {', '.join(self.found)}; name one with --column {name}=COLUMN"
        )

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Where a record stands, and its values under the manifest's column names."""
        for number, record in read_records(self.path):
            yield f"'{self.path}' line {number}", {name: record.get(own) for name, own in self.columns.items()}


def image_rows(source: Records, *, repeats: bool) -> Iterator[Row]:
    """Rows of images.parquet. With `repeats` (a table of captions) the first record of an image counts, and a
    later one that says something else of it raises `VlpipeError`; that costs some hundred bytes an image.
    """
    seen: dict[str, tuple[str, Row]] = {}
    for where, record in source.records():
        row = {name: _cell(where, name, value) for name, value in record.items()}
        for name in ("path", "image_id"):
            if row[name] is None:
                raise VlpipeError(f"{where}: {name} is absent; give it, or take the row out")
        first, other = seen.get(row["image_id"], (where, row))
        if row != other:
            column = next(name for name in row if row[name] != other[name])
            raise VlpipeError(
                f"{where}: image {row['image_id']!r} has {column} {row[column]!r}, in {first} it has "
                f"{other[column]!r}; an image has one"
            )
        if row["image_id"] not in seen:
            yield row
        if repeats:
            seen[row["image_id"]] = first, other


@dataclass
class TextRows:
    """Rows of texts.parquet. A record holds one text or a list of them.

    A text without an id is `IMAGE#0`, `IMAGE#1`, ... in the table's order, or its number where it has no image;
    absent ones count. `left_out` says how many were absent, after the pass.
    """

    source: Records
    drop_blank: bool = False
    how: str = "--drop-blank"  # the way to ask for that
    left_out: int = 0

    def __iter__(self) -> Iterator[Row]:
        absent: list[str] = []
        place: Counter[str | None] = Counter()
        for where, record in self.source.records():
            row = {name: _cell(where, name, value) for name, value in record.items() if name != "text"}
            texts = _texts(where, record["text"])
            if len(texts) > 1 and row.get("text_id"):
                raise VlpipeError(
                    f"{where}: one text_id for {len(texts)} texts; leave it out or write a row a text"
                )
            row["role"] = row.get("role") or "caption"
            image = row.get("image_id")
            for text in texts:
                name = row.get("text_id") or (str(place[None]) if image is None else f"{image}#{place[image]}")
                place[image] += 1
                if text is None:
                    absent.append(where)
                else:
                    yield row | {"text": text, "text_id": name}
        self.left_out = len(absent)
        if absent and not self.drop_blank:
            raise VlpipeError(
                f"texts that are missing, null or blank: {_shown(absent)}; write them, or leave them out with "
                f"{self.how}"
            )


def check_renames(renames: Mapping[str, str], sources: Sequence[Source]) -> None:
    """Raise `UnknownNameError` for a renamed column that none of the tables has."""
    found = {name for source in sources for name in source.found}
    for column in renames.values():
        if column not in found:
            raise UnknownNameError("column of the table", column, found)


def parse_renames(assignments: Sequence[str]) -> dict[str, str]:
    """`text=caption`, the manifest's name first. Raises `UsageError`, `UnknownNameError`."""
    renames = {}
    for assignment in assignments:
        name, equals, column = assignment.partition("=")
        if not (equals and name and column):
            raise UsageError(f"--column '{assignment}': expected NAME=COLUMN, for example --column text=caption")
        known = sorted(IMAGES.required | TEXTS.required)
        if name not in known:
            raise UnknownNameError("manifest column", name, known)
        renames[name] = column
    return renames


def _shown(places: Sequence[str]) -> str:
    rest = len(places) - NAMES_SHOWN
    return ", ".join(places[:NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _texts(where: str, value: Any) -> list[str | None]:
    items = (value or [None]) if isinstance(value, list) else [value]
    return [_cell(where, "text", item) for item in items]


def _cell(where: str, name: str, value: Any) -> Any:
    """A value to the letter, None where it is absent, an integer's digits."""
    if name == "attributes" and isinstance(value, dict | list):
        return dict(value)  # of JSON an object, of Parquet pairs
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or isinstance(value, str):
        return value if value and not value.isspace() else None
    what = "a number with a fraction" if isinstance(value, float) else type(value).__name__
    raise VlpipeError(f"{where}: {name} is {value!r} ({what}); expected text: write it as the text that is meant")
