"""A manifest on disk: a folder with `manifest.toml`, `images.parquet` and `texts.parquet`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, ValidationError

from vlpipe.cache_store.layout import Side
from vlpipe.foundation.config import Config, read_toml
from vlpipe.foundation.errors import StaleError, VlpipeError
from vlpipe.foundation.files import file_digest
from vlpipe.manifests.digest import TableDigest, manifest_digest
from vlpipe.manifests.schema import TABLES

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
        for table in TABLES.values():
            path = folder / table.file
            if not path.is_file():
                raise VlpipeError(f"manifest '{folder}' has no {table.file}; {HOW.format(folder=folder)}")
            if file_digest(path) != description.files.get(table.file):
                raise StaleError(
                    f"'{path}' is not the table that {DESCRIPTION} describes: it was changed afterwards; "
                    "restore it, or build the manifest again"
                )
        return cls(folder, description)

    def count(self, side: Side) -> int:
        """Rows of a table."""
        return self.description.counts[TABLES[side].name]

    def table(self, side: Side, columns: Sequence[str] | None = None) -> pa.Table:
        """A whole table, or some columns of it, in memory. Raises `UnknownNameError` for an unknown column."""
        with self._file(side, columns) as file:
            return file.read(columns=None if columns is None else list(columns))

    def batches(self, side: Side, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """The table in order, exactly `rows` rows at a time but for the last; memory does not grow with it."""
        if rows < 1:
            raise VlpipeError(f"a batch of {rows} rows; expected at least 1")
        with self._file(side, columns) as file:
            yield from regroup(file.iter_batches(min(rows, ROWS), columns=list(columns)), rows)

    def verify(self) -> None:
        """Recompute the digest from the rows. Raises `StaleError` where the description gives another."""
        found = manifest_digest({table.name: self._digest(side) for side, table in TABLES.items()})
        if found != self.digest:
            raise StaleError(
                f"manifest '{self.folder}': the rows have digest {found[:12]}, {DESCRIPTION} says "
                f"{self.digest[:12]}; build the manifest again"
            )

    def _digest(self, side: Side) -> TableDigest:
        digest = TableDigest(TABLES[side])
        for batch in self.batches(side, TABLES[side].schema.names, ROWS):
            digest.update(batch)
        return digest

    def _file(self, side: Side, columns: Sequence[str] | None) -> pq.ParquetFile:
        # ParquetFile, not read_table: that one takes `key=value` folder names on the way for columns.
        TABLES[side].check_columns(tuple(columns or ()))
        return pq.ParquetFile(self.folder / TABLES[side].file)


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
