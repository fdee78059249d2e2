"""Writing a manifest: rows are checked one by one, streamed, and there all at once or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.files import file_digest, fsync_folder, write_atomic
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.digest import TableDigest, manifest_digest
from vlpipe.manifests.identity import Ids
from vlpipe.manifests.manifest import DESCRIPTION, FORMAT, Description, Manifest, tables_of
from vlpipe.manifests.schema import TABLES, Kind, Table, row_values

REFERENCES: tuple[tuple[Kind, str, Kind], ...] = (
    ("text", "image_id", "image"),
    ("text", "source_text_id", "text"),
    ("region", "image_id", "image"),
    ("region", "text_id", "text"),
)


class TableWriter:
    """One table on its way to disk: checks, counts and digest, all in one pass of `table.step` rows at a time."""

    def __init__(self, table: Table, folder: Path) -> None:
        self.table = table
        self.path = folder / table.file
        self.rows = 0
        self.splits: Counter[str] = Counter()
        self.digest = TableDigest(table)
        self.ids = {name: Ids() for name in table.schema.names if name.endswith("_id") and name != "group_id"}

    def write(self, rows: Iterable[Row]) -> None:
        """All rows. Raises `VlpipeError` for the first one that is wrong, and for an id that stands twice."""
        iterator = iter(rows)
        with pq.ParquetWriter(self.path, self.table.schema, compression="zstd") as file:
            while part := list(islice(iterator, self.table.step)):
                file.write_batch(self._take(part))
        twice = self.ids[self.table.id].repeated()
        if twice:
            first, second = twice
            raise VlpipeError(
                f"{self.table.name} rows {first + 1} and {second + 1} have the same {self.table.id} "
                f"{self.value(self.table.id, first)!r}; every id may stand once"
            )

    def check_known(self, column: str, owner: TableWriter) -> None:
        """Raise `VlpipeError` for the first row whose `column` names no row of `owner`."""
        row = self.ids[column].missing_in(owner.ids[owner.table.id])
        if row is not None:
            raise VlpipeError(
                f"{self.table.name} row {row + 1} ({self.table.id} {self.value(self.table.id, row)!r}): {column} "
                f"{self.value(column, row)!r} is none of the {owner.rows} rows of {owner.table.file}; add it there"
            )

    def value(self, column: str, row: int) -> Any:
        """One value that is already on disk, for a message."""
        with pq.ParquetFile(self.path) as file:
            return file.read(columns=[column]).column(0)[row].as_py()

    def _take(self, part: list[Row]) -> pa.RecordBatch:
        values = [row_values(self.table, row, self.rows + number) for number, row in enumerate(part, start=1)]
        fields = zip(zip(*values, strict=True), self.table.schema, strict=True)
        arrays = [pa.array(column, field.type) for column, field in fields]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.table.schema)
        columns = dict(zip(self.table.schema.names, zip(*values, strict=True), strict=True))
        for name, ids in self.ids.items():
            ids.extend(columns[name])
        self.splits.update(split for split in columns.get("split", ()) if split is not None)
        self.rows += len(part)
        self.digest.update(batch)
        return batch


def write_manifest(
    folder: Path,
    *,
    name: str,
    source: str,
    licence: str,
    image_root: Path,
    images: Iterable[Row],
    texts: Iterable[Row],
    regions: Iterable[Row] = (),
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Write the rows, `images` read to its end before `texts` and these before `regions`, in memory that does not
    grow with them but for 16 bytes an id or reference and 16 more for each id sorted: 2 million images with a
    text each cost 192 MB.

    One side may be empty; without regions there is no table of them. Where the folder holds a manifest of the
    same rows, its tables stay as they are. Raises `VlpipeError`: a wrong row, named; an id that stands twice, or
    a reference to a row that is not there; no rows at all; other rows in the folder and not `overwrite`.
    """
    with _workshop(folder) as workshop:
        writers = {kind: TableWriter(table, workshop) for kind, table in TABLES.items()}
        for writer, rows in zip(writers.values(), (images, texts, regions), strict=True):
            writer.write(rows)
        if not (writers["image"].rows or writers["text"].rows):
            raise VlpipeError(f"'{name}' has no rows, neither images nor texts; nothing was written")
        for kind, column, owner in REFERENCES:
            writers[kind].check_known(column, writers[owner])
        kept = [writer for writer in writers.values() if writer.rows or not writer.table.optional]
        description = Description(
            format=FORMAT,
            name=name,
            source=source,
            licence=licence,
            image_root=_relative(image_root, folder),
            digest=manifest_digest({writer.table.name: writer.digest for writer in kept}),
            counts={writer.table.name: writer.rows for writer in kept},
            splits={w.table.name: dict(sorted(w.splits.items())) for w in kept if "split" in w.table.required},
            files={writer.table.file: file_digest(writer.path) for writer in kept},
            settings=dict(settings or {}),
        )
        _publish(workshop, folder, description, overwrite)
    return Manifest.open(folder)


@contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """A folder inside the manifest's own (one file system), gone afterwards: so is an empty manifest folder."""
    folder.mkdir(parents=True, exist_ok=True)
    workshop = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder))
    try:
        yield workshop
    finally:
        shutil.rmtree(workshop)
        with suppress(OSError):
            folder.rmdir()


def _publish(workshop: Path, folder: Path, description: Description, overwrite: bool) -> None:
    """Move the tables in and write the description last: a folder without one is no manifest."""
    path = folder / DESCRIPTION
    if path.exists() and not overwrite:
        standing = Manifest.open(folder)
        if standing.digest != description.digest:
            raise VlpipeError(
                f"'{folder}' holds another manifest, '{standing.name}' ({standing.digest[:12]}; these rows have "
                f"{description.digest[:12]}); give another folder, or --overwrite"
            )
        description = description.model_copy(update={"files": standing.description.files})
    else:
        path.unlink(missing_ok=True)
        for table in TABLES.values():
            (folder / table.file).unlink(missing_ok=True)
        for table in tables_of(description):
            _settle(workshop / table.file)
            (workshop / table.file).replace(folder / table.file)
        fsync_folder(folder)
    write_atomic(path, tomli_w.dumps(description.model_dump()).encode("utf-8"))


def _settle(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _relative(image_root: Path, folder: Path) -> str:
    root, home = image_root.resolve(), folder.resolve()
    return root.relative_to(home).as_posix() if root.is_relative_to(home) else root.as_posix()
