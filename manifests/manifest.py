"""A manifest on disk: a folder with `manifest.toml`, `images.parquet`, `texts.parquet` and, where it has regions,
`regions.parquet`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, ValidationError

from vlpipe.foundation.config import Config, read_toml
from vlpipe.foundation.errors import StaleError, VlpipeError
from vlpipe.foundation.files import file_digest
from vlpipe.manifests.digest import TableDigest, manifest_digest
from vlpipe.manifests.schema import TABLES, Kind, Table

DESCRIPTION = "manifest.toml"
FORMAT = 1
ROWS = 16_384  # rows of a row group, and of one step of a pass over a table
HOW = "vlpipe manifest build NAME --root DIR --out {folder}, or vlpipe manifest from-table, makes one"


class Description(Config):
    """What `manifest.toml` says. `image_root` is relative to the folder where it lies inside it."""

    format: int
    name: str
    source: str
    licence: str
    image_root: str
    digest: str
    counts: dict[str, int]
    splits: dict[str, dict[str, int]]  # rows by split, by table; rows without a split are not in it
    files: dict[str, str]  # SHA-256 by file name
    settings: dict[str, Any] = Field(default_factory=dict)  # what the data set was built with


class Manifest:
    """What there is to encode. `digest` is the identity of the rows: the cache's folder is named by it."""

    def __init__(self, folder: Path, description: Description) -> None:
        self.folder = folder
        self.description = description
        self.name = description.name
        self.digest = description.digest
        self.image_root = folder / description.image_root

    @classmethod
    def open(cls, folder: Path) -> Manifest:
        """Read the description and check that the tables are those that it describes.

        Raises `VlpipeError` where something is missing, `StaleError` where a table was changed afterwards.
        """
        description = read_description(folder)
        for table in tables_of(description):
            path = folder / table.file
            if not path.is_file():
                raise VlpipeError(f"manifest '{folder}' has no {table.file}; {HOW.format(folder=folder)}")
            if file_digest(path) != description.files.get(table.file):
                raise StaleError(
                    f"'{path}' is not the table that {DESCRIPTION} describes: it was changed afterwards; "
                    "restore it, or build the manifest again"
                )
        return cls(folder, description)

    def count(self, kind: Kind) -> int:
        """Rows of a table."""
        return self.description.counts.get(TABLES[kind].name, 0)

    def table(self, kind: Kind, columns: Sequence[str] | None = None) -> pa.Table:
        """A whole table, or some columns of it, in memory. Raises `UnknownNameError` for an unknown column."""
        wanted = list(TABLES[kind].schema.names if columns is None else columns)
        TABLES[kind].check_columns(tuple(wanted))
        if not self.count(kind):
            return TABLES[kind].schema.empty_table().select(wanted)
        with self._file(kind) as file:
            return file.read(columns=wanted)

    def batches(self, kind: Kind, columns: Sequence[str], rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
        """The table in order, exactly `rows` rows at a time but for the last; memory does not grow with it.

        From row `first` on; what lies before is not read.
        """
        if rows < 1:
            raise VlpipeError(f"a batch of {rows} rows; expected at least 1")
        TABLES[kind].check_columns(tuple(columns))
        if not self.count(kind):
            return
        with self._file(kind) as file:
            groups, skip = _groups_from(file, first)
            parts = file.iter_batches(min(rows, ROWS), columns=list(columns), row_groups=groups)
            yield from regroup(_without_first(parts, skip), rows)

    def verify(self) -> None:
        """Recompute the digest from the rows. Raises `StaleError` where the description gives another."""
        found = manifest_digest({table.name: self._digest(table) for table in tables_of(self.description)})
        if found != self.digest:
            raise StaleError(
                f"manifest '{self.folder}': the rows have digest {found[:12]}, {DESCRIPTION} says "
                f"{self.digest[:12]}; build the manifest again"
            )

    def _digest(self, table: Table) -> TableDigest:
        digest = TableDigest(table)
        for batch in self.batches(table.kind, table.schema.names, table.step):
            digest.update(batch)
        return digest

    def _file(self, kind: Kind) -> pq.ParquetFile:
        # ParquetFile, not read_table: that one takes `key=value` folder names on the way for columns.
        return pq.ParquetFile(self.folder / TABLES[kind].file)


def tables_of(description: Description) -> list[Table]:
    """The tables that a manifest consists of: an optional one only where it has rows."""
    return [table for table in TABLES.values() if not table.optional or description.counts.get(table.name)]


def read_description(folder: Path) -> Description:
    """`manifest.toml` alone. Raises `VlpipeError` where it is missing, or is no description of this format."""
    path = folder / DESCRIPTION
    if not path.is_file():
        what = f"has no {DESCRIPTION}" if folder.is_dir() else "does not exist"
        raise VlpipeError(f"manifest '{folder}' {what}; {HOW.format(folder=folder)}")
    try:
        description = Description.model_validate(read_toml(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise VlpipeError(f"'{path}', {where}: {first['msg']}; build the manifest again") from None
    if description.format != FORMAT:
        raise VlpipeError(f"'{path}' has format {description.format}; this vlpipe reads format {FORMAT}")
    return description


def _groups_from(file: pq.ParquetFile, row: int) -> tuple[list[int], int]:
    """The row groups from the one on that a row is in, and how many rows of it come before."""
    groups = list(range(file.num_row_groups))
    while groups and file.metadata.row_group(groups[0]).num_rows <= row:
        row -= file.metadata.row_group(groups.pop(0)).num_rows
    return groups, row


def _without_first(parts: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield part.slice(min(rows, len(part)))
        rows = max(0, rows - len(part))


def regroup(parts: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, `rows` at a time but for the last."""
    waiting: list[pa.RecordBatch] = []
    for part in parts:
        while sum(len(held) for held in waiting) + len(part) >= rows:
            cut = rows - sum(len(held) for held in waiting)
            yield _join([*waiting, part.slice(0, cut)])
            waiting, part = [], part.slice(cut)
        if len(part):
            waiting.append(part)
    if waiting:
        yield _join(waiting)


def _join(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of its own memory, so that a slice does not keep a whole row group alive."""
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
