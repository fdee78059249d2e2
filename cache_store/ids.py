"""A store's ids, in row order, as one Arrow array: two million cost tens of megabytes, not hundreds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vlpipe.cache_store.errors import CorruptCacheError, RowsError
from vlpipe.cache_store.layout import rows_path
from vlpipe.cache_store.places import Place, read_whole

Ids = Any  # pa.LargeStringArray; pyarrow has no types


def as_ids(ids: Sequence[str] | Any) -> Ids:
    """Any sequence of texts, also an Arrow one, as one Arrow array of ids.

    Raises `RowsError` when there are none or one comes twice.
    """
    array = text_column(ids)
    if not len(array) or array.null_count:
        raise RowsError(f"{len(array)} ids of which {array.null_count} null: expected at least one, each a text")
    order = pc.sort_indices(array)  # 8 bytes an id; counting the distinct ones takes 200
    ordered = array.take(order)
    same = pc.index(pc.equal(ordered[1:], ordered[:-1]), True).as_py()
    if same >= 0:
        first, second = sorted(order[same : same + 2].to_pylist())
        raise RowsError(f"id '{ordered[same]}' stands at rows {first} and {second}; ids must be unique")
    return array


def text_column(texts: Sequence[str | None] | Any) -> Ids:
    """Any sequence of texts, also a table's column, as one Arrow array; raises `RowsError` for other things."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    if isinstance(texts, str):
        raise RowsError(f"ids or keys: the one text {texts!r} given, expected a list of them")
    try:
        return pa.array(texts, pa.large_string())
    except (TypeError, ValueError) as error:
        raise RowsError(f"ids or keys: expected texts ({str(error).splitlines()[0]})") from error


def ids_digest(ids: Ids) -> str:
    """SHA-256 over every id's length and all their bytes: of the ids themselves, not of the file they lie in."""
    offsets = np.frombuffer(ids.buffers()[1], np.int64)[ids.offset : ids.offset + len(ids) + 1]
    total = hashlib.sha256(np.diff(offsets).astype("<i8", copy=False).data)
    total.update(memoryview(ids.buffers()[2] or b"")[offsets[0] : offsets[-1]])
    return total.hexdigest()


def parquet_bytes(ids: Ids) -> bytes:
    """The table `rows.parquet`, one column `id`; the same bytes for the same ids and pyarrow."""
    buffer = BytesIO()
    pq.write_table(pa.table({"id": ids}), buffer)
    return buffer.getvalue()


def file_seal(data: bytes) -> str:
    """SHA-256 of the file's bytes, compared before it is parsed: Parquet readers can crash on a damaged one."""
    return hashlib.sha256(data).hexdigest()


def read_ids(store: Place, seal: str, rows: int) -> Ids:
    """The ids of a store; raises `CorruptCacheError`, `CacheReadError`."""
    path = rows_path(store)
    try:
        data = read_whole(path)
    except FileNotFoundError:
        data = b""
    if file_seal(data) != seal:
        raise CorruptCacheError(
            f"'{path}' is missing or damaged; the ids of rows 0 to {rows - 1} are in doubt: run the same "
            "`vlpipe extract` again, it writes the table anew"
        )
    # Not read_table: its threads may still hold Python's buffer when the process ends, which then aborts.
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    return table.column("id").cast(pa.large_string()).combine_chunks()


def positions_of(ids: Ids, asked: Sequence[str]) -> NDArray[np.int64]:
    """The row of each asked id; raises `RowsError` that names the first unknown ones."""
    column = text_column(asked)
    found = pc.index_in(column, value_set=ids)
    if found.null_count:
        unknown = column.take(np.flatnonzero(found.is_null())[:3]).to_pylist()
        raise RowsError(
            f"{found.null_count} of {len(column)} ids are not in the store, first {unknown}; expected ids such as "
            f"'{ids[0]}' of the same manifest"
        )
    return np.asarray(found, dtype=np.int64)
