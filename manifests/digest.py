"""The logical digest: a manifest's identity, which does not depend on how Parquet lays it out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vlpipe.foundation.files import digest
from vlpipe.manifests.schema import Table


class ColumnDigest:
    """Two running SHA-256: of the values' lengths in bytes as little-endian int64 (-1 for null), and of their
    UTF-8 bytes one after the other. Together they fix every value and the order, however many rows come at a time.
    """

    def __init__(self) -> None:
        self.lengths = hashlib.sha256()
        self.bytes = hashlib.sha256()

    def update(self, values: pa.Array) -> None:
        """Take in the next rows of a string column."""
        lengths = pc.fill_null(pc.binary_length(values), -1)
        self.lengths.update(_int64(lengths))
        filled = pc.fill_null(values, "")
        offsets = np.frombuffer(filled.buffers()[1], np.int32)[filled.offset : filled.offset + len(filled) + 1]
        data = filled.buffers()[2]
        if len(filled) and data is not None:
            self.bytes.update(memoryview(data)[int(offsets[0]) : int(offsets[-1])])

    def parts(self) -> list[str]:
        """Both digests, in hexadecimal."""
        return [self.lengths.hexdigest(), self.bytes.hexdigest()]


class MapDigest:
    """The same for a map column: entries per row, then keys and items as string columns."""

    def __init__(self) -> None:
        self.counts = hashlib.sha256()
        self.keys = ColumnDigest()
        self.items = ColumnDigest()

    def update(self, values: pa.Array) -> None:
        """Take in the next rows of a map column; null counts as empty."""
        offsets = np.asarray(values.offsets)
        self.counts.update(_int64(np.diff(offsets)))
        first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        self.keys.update(values.keys.slice(first, count))  # `keys` and `items` are not cut where the map is
        self.items.update(values.items.slice(first, count))

    def parts(self) -> list[str]:
        """All five digests, in hexadecimal."""
        return [self.counts.hexdigest(), *self.keys.parts(), *self.items.parts()]


class NumberDigest:
    """Of a column of numbers: their bytes as little-endian int64 or float64, null as 0."""

    def __init__(self, kind: pa.DataType) -> None:
        self.format = "<f8" if pa.types.is_floating(kind) else "<i8"
        self.bytes = hashlib.sha256()

    def update(self, values: pa.Array) -> None:
        """Take in the next rows of a column of numbers."""
        filled = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
        self.bytes.update(np.ascontiguousarray(filled, dtype=self.format).tobytes())

    def parts(self) -> list[str]:
        """The digest, in hexadecimal."""
        return [self.bytes.hexdigest()]


class ListDigest:
    """Entries per row as little-endian int64 (-1 for null), then the entries as a column of their own."""

    def __init__(self, kind: pa.DataType) -> None:
        self.counts = hashlib.sha256()
        self.entries = column_digest(kind.value_type)

    def update(self, values: pa.Array) -> None:
        """Take in the next rows of a list column."""
        self.counts.update(_int64(pc.fill_null(pc.list_value_length(values), -1)))
        self.entries.update(values.flatten())

    def parts(self) -> list[str]:
        """All digests, in hexadecimal."""
        return [self.counts.hexdigest(), *self.entries.parts()]


class StructDigest:
    """Whether a row is there, as little-endian int64 0 or 1, then every field as a column."""

    def __init__(self, kind: pa.DataType) -> None:
        self.there = hashlib.sha256()
        self.fields = [column_digest(field.type) for field in kind]

    def update(self, values: pa.Array) -> None:
        """Take in the next rows of a struct column."""
        self.there.update(_int64(values.is_valid()))
        for field, column in zip(self.fields, values.flatten(), strict=True):
            field.update(column)

    def parts(self) -> list[str]:
        """All digests, in hexadecimal."""
        return [self.there.hexdigest(), *(part for field in self.fields for part in field.parts())]


Digest = ColumnDigest | MapDigest | NumberDigest | ListDigest | StructDigest


def column_digest(kind: pa.DataType) -> Digest:
    """The digest for a column of this Arrow type."""
    if pa.types.is_map(kind):
        return MapDigest()
    if pa.types.is_struct(kind):
        return StructDigest(kind)
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return ListDigest(kind)
    return ColumnDigest() if pa.types.is_string(kind) else NumberDigest(kind)


class TableDigest:
    """A table's columns, taken in batch by batch."""

    def __init__(self, table: Table) -> None:
        self.columns = {field.name: column_digest(field.type) for field in table.schema}

    def update(self, batch: pa.RecordBatch) -> None:
        """Take in the next rows, all columns."""
        for name, column in self.columns.items():
            column.update(batch.column(name))

    def parts(self) -> dict[str, list[str]]:
        """Digests by column name."""
        return {name: column.parts() for name, column in self.columns.items()}


def manifest_digest(tables: Mapping[str, TableDigest]) -> str:
    """SHA-256 of the canonical JSON of format number and every column's digests; 64 hexadecimal digits."""
    return digest({"format": 1, "tables": {name: table.parts() for name, table in tables.items()}})


def _int64(values: Any) -> bytes:
    return np.ascontiguousarray(np.asarray(values), dtype="<i8").tobytes()
