"""Per-query rows in a run's folder, with the evaluation that they belong to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vlpipe.evaluate.contracts import Rows
from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.files import canonical_json, write_atomic

KEY, NOTES = b"vlpipe.evaluation", b"vlpipe.notes"


@dataclass(frozen=True)
class Saved:
    """An evaluation's rows, all that decides them, and what a reader must know of the vectors behind them."""

    rows: Rows
    identity: Mapping[str, Any]
    notes: list[str]


def write_rows(path: Path, saved: Saved, image_ids: Sequence[str]) -> None:
    """One Parquet row a query: `query_id`, `image_id` or null, and the metric's columns; whole or not at all."""
    rows = saved.rows
    columns = {
        "query_id": pa.array(rows.query_ids.tolist(), pa.string()),
        "image_id": pa.array([image_ids[i] if i >= 0 else None for i in rows.image], pa.string()),
        **{name: pa.array(values) for name, values in rows.values.items()},
    }
    said = {KEY: canonical_json(saved.identity), NOTES: canonical_json(saved.notes)}
    table = pa.table(columns).replace_schema_metadata({key: text.encode("utf-8") for key, text in said.items()})
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    write_atomic(path, buffer.getvalue().to_pybytes())


def read_rows(path: Path) -> Saved:
    """The rows, with images numbered in order of first appearance, and what was saved with them.

    Raises `VlpipeError` for a file that is not such a table.
    """
    try:
        with pq.ParquetFile(path) as file:  # a dataset's threads may outlive the interpreter, which aborts then
            table = file.read(use_threads=False)
        said = table.schema.metadata or {}
        identity, notes = json.loads(said[KEY]), json.loads(said.get(NOTES, b"[]"))
        position: dict[str, int] = {}
        owners = table["image_id"].to_pylist()
        image = [-1 if i is None else position.setdefault(i, len(position)) for i in owners]
        query_ids = np.array(table["query_id"].to_pylist(), dtype=object)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise VlpipeError(
            f"'{path}' does not hold rows of an evaluation ({error}); delete it and evaluate again"
        ) from None
    values = {n: table[n].to_numpy() for n in table.column_names if n not in ("query_id", "image_id")}
    return Saved(Rows(query_ids, np.array(image, dtype=np.int64), values), identity, notes)
