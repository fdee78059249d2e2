"""What a block's rows must be before any of them is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import Rows, StoredArray
from vlpipe.cache_store.errors import RowsError, ValueRangeError
from vlpipe.cache_store.ids import Ids
from vlpipe.cache_store.layout import DTYPES, HASH_BYTES, USABLE, Status

CACHED = 1 << 18  # numbers that stay in the processor's cache from one look to the next


@dataclass(frozen=True)
class BlockRows:
    """One block: `rows[output]` (rows, *shape), `status` uint8 (rows,), `content_hash` uint8 (rows, 16)."""

    rows: Mapping[str, Rows]
    status: NDArray[np.uint8]
    content_hash: NDArray[np.uint8]


def checked(arrays: Mapping[str, StoredArray], ids: Ids, given: BlockRows) -> BlockRows:
    """The block in the stored dtypes, failed rows zeroed; `ids` are those of its rows.

    Raises `RowsError` for a wrong name, shape, dtype or status, `ValueRangeError` for a value that is not finite
    or does not fit.
    """
    if set(given.rows) != set(arrays):
        raise RowsError(f"outputs {sorted(given.rows)} given, expected {sorted(arrays)}")
    _expect("status", given.status, (len(ids),), ("uint8",))
    _expect("content_hash", given.content_hash, (len(ids), HASH_BYTES), ("uint8",))
    if not np.isin(given.status, (*USABLE, Status.FAILED)).all():
        raise RowsError(
            f"status {sorted(set(given.status.tolist()))} given, expected ok, failed or cut for every row"
        )
    rows = {}
    for name, array in arrays.items():
        _expect(f"output '{name}'", given.rows[name], (len(ids), *array.shape), DTYPES)
        rows[name] = _fitted(name, given.rows[name], given.status, array.dtype, ids)
    return BlockRows(rows, given.status, given.content_hash)


def _expect(what: str, values: Rows, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    if values.shape != shape or values.dtype.name not in dtypes:
        raise RowsError(
            f"{what} has shape {values.shape} and dtype {values.dtype.name}, expected {shape} and "
            f"{' or '.join(dtypes)}"
        )


def _all_finite(values: Rows) -> bool:
    """Whether no number is infinite or NaN; 20 times as fast for float16 as NumPy's own test, which converts.

    Read as integers, with and without sign, numbers are in order of size: of each sign, only infinity and NaN are
    not below infinity.
    """
    size = values.dtype.itemsize
    infinity = int(np.array(np.inf, values.dtype).view(f"<u{size}"))
    flat = values.reshape(-1)
    pieces = (flat[start : start + CACHED] for start in range(0, flat.size, CACHED))
    return all(
        int(piece.view(f"<i{size}").max()) < infinity
        and int(piece.view(f"<u{size}").max()) < infinity + (1 << 8 * size - 1)
        for piece in pieces
    )


def _fitted(name: str, values: Rows, status: NDArray[np.uint8], dtype: np.dtype[Any], ids: Ids) -> Rows:
    failed = status == Status.FAILED
    with np.errstate(over="ignore"):  # found below, with its row
        fitted = np.asarray(values, dtype, order="C")
    if failed.any():
        fitted = np.where(failed.reshape(-1, *(1 for _ in fitted.shape[1:])), dtype.type(0), fitted)
    if _all_finite(fitted):
        return fitted
    place = tuple(np.argwhere(~np.isfinite(fitted))[0])
    value = values[place]
    where = f"output '{name}' of row '{ids[int(place[0])].as_py()}' has the value {value:.6g}"
    if np.isfinite(value):
        raise ValueRangeError(
            f"{where}, {dtype.name} holds at most {np.finfo(dtype).max:.6g}; nothing of its block was kept: run "
            "again with --dtype float32"
        )
    raise ValueRangeError(
        f"{where}, expected a finite number; nothing of its block was kept: look at that item and at "
        "the model's precision"
    )
