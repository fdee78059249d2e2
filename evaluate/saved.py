"""Per-query rows in a run's folder, with the evaluation that they belong to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vlpipe.evaluate.contracts import Rows
from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.files import canonical_json, write_atomic

KEY = b"vlpipe.evaluation"


def write_rows(path: Path, rows: Rows, image_ids: Sequence[str], identity: Mapping[str, Any]) -> None:
    """One Parquet row a query: `query_id`, `image_id`, and the metric's columns; whole or not at all."""
    columns = {
        "query_id": pa.array(rows.query_ids.tolist(), pa.string()),
        "image_id": pa.array([image_ids[i] for i in rows.image], pa.string()),
        **{name: pa.array(values) for name, values in rows.values.items()},
    }
    table = pa.table(columns).replace_schema_metadata({KEY: canonical_json(identity).encode("utf-8")})
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    write_atomic(path, buffer.getvalue().to_pybytes())


def read_rows(path: Path) -> tuple[Rows, dict[str, Any]]:
    """The rows, with images numbered in order of first appearance, and their evaluation.

    Raises `VlpipeError` for a file that is not such a table.
    """
    try:
        table = pq.read_table(path)
        identity = json.loads((table.schema.metadata or {})[KEY])
        position: dict[str, int] = {}
        image = [position.setdefault(i, len(position)) for i in table["image_id"].to_pylist()]
        query_ids = np.array(table["query_id"].to_pylist(), dtype=object)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise VlpipeError(
            f"'{path}' does not hold rows of an evaluation ({error}); delete it and evaluate again"
        ) from None
    values = {n: table[n].to_numpy() for n in table.column_names if n not in ("query_id", "image_id")}
    return Rows(query_ids, np.array(image, dtype=np.int64), values), identity
