"""Files of other programs: features as .npy arrays, and the lists of ids that say whose rows they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import Rows
from vlpipe.cache_store.errors import RowsError
from vlpipe.cache_store.ids import Ids
from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError

DTYPES = ("float16", "float32", "float64")
COLUMNS = ("id", "image_id", "text_id")  # taken when none is named


class Stacked:
    """The rows of some arrays, (rows, *shape) each, one after the other; they may be mapped files."""

    def __init__(self, arrays: Sequence[Rows]) -> None:
        """Raises `RowsError` for arrays that are no rows of floats, or of which rows differ in shape or dtype."""
        self.arrays = list(arrays)
        self.shape, self.dtype = self.arrays[0].shape[1:], self.arrays[0].dtype
        for array in self.arrays:
            if array.dtype.name not in DTYPES or array.ndim < 2 or 0 in array.shape[1:]:
                raise RowsError(
                    f"features have the shape {array.shape} and dtype {array.dtype}, expected (rows, width) or "
                    f"more axes, and {', '.join(DTYPES)}"
                )
            if (array.shape[1:], array.dtype) != (self.shape, self.dtype):
                raise RowsError(
                    f"the first file has rows of shape {self.shape} and dtype {self.dtype}, another of "
                    f"{array.shape[1:]} and {array.dtype}; expected the same"
                )
        self._starts = np.cumsum([0, *map(len, self.arrays)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return prod(self.shape) * self.dtype.itemsize

    def take(self, positions: NDArray[np.int64]) -> Rows:
        """Rows by position, (rows, *shape), in memory, little-endian."""
        out: Rows = np.empty((len(positions), *self.shape), self.dtype.newbyteorder("<"))
        for start, array in zip(self._starts[:-1], self.arrays, strict=True):
            here = (positions >= start) & (positions < start + len(array))
            out[here] = array[positions[here] - start]
        return out


def map_features(path: Path, index: int | None = None) -> Rows:
    """An .npy file, mapped; with `index` only that entry of its first axis. Nothing is unpickled.

    Raises `VlpipeError` for what is no such file, `UsageError` for an index out of its range.
    """
    try:
        array: Rows = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise VlpipeError(f"features '{path}' do not exist; give an .npy file") from None
    except ValueError as error:
        raise VlpipeError(f"features '{path}' are no plain .npy file of numbers ({error}); use np.save") from None
    if index is None:
        return array
    if array.ndim < 2 or not -len(array) <= index < len(array):
        raise UsageError(f"--index {index}: '{path}' has the shape {array.shape}")
    chosen: Rows = array[index]
    return chosen


def read_id_file(path: Path, column: str | None = None) -> Ids:
    """The ids in the order of a .txt, .json or .parquet file, to the letter; numbers are their digits.

    `column` is the Parquet table's. Raises `UsageError` for another suffix, `UnknownNameError` for no such column,
    `VlpipeError` for a file that is not there or not what its suffix says.
    """
    readers: dict[str, Callable[[], Ids]] = {
        ".txt": lambda: _lines(path),
        ".json": lambda: _json(path),
        ".parquet": lambda: _column(path, column),
    }
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise UsageError(f"ids '{path}' end in '{path.suffix}'; expected one of {', '.join(readers)}")
    if column is not None and suffix != ".parquet":
        raise UsageError(f"--id-column '{column}': ids '{path}' are no .parquet table")
    try:
        return readers[suffix]()
    except FileNotFoundError:
        raise VlpipeError(f"ids '{path}' do not exist; give a .txt, .json or .parquet file") from None
    except (ValueError, pa.ArrowInvalid) as error:  # not UTF-8, not JSON, not Parquet
        raise VlpipeError(f"ids '{path}' cannot be read: {str(error).splitlines()[0]}") from None


def _lines(path: Path) -> Ids:
    """One id a line; only the line's end is no part of it."""
    text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n")
    if not text:
        return pa.array([], pa.large_string())
    # Split by Arrow: two million Python texts would cost 150 MB.
    return pc.split_pattern(pa.array([text], pa.large_string()), "\n").flatten()


def _json(path: Path) -> Ids:
    found = json.loads(path.read_bytes(), parse_int=str)
    if not isinstance(found, list) or not all(isinstance(entry, str) for entry in found):
        raise VlpipeError(f"ids '{path}': expected a JSON list of texts or whole numbers, such as [\"a.jpg\", 17]")
    return pa.array(found, pa.large_string())


def _column(path: Path, asked: str | None) -> Ids:
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        only = names[0] if len(names) == 1 else None
        name = asked or next((known for known in COLUMNS if known in names), only)
        if name is None:
            raise UsageError(f"ids '{path}' have the columns {', '.join(names)}; name one with --id-column")
        if name not in names:
            raise UnknownNameError(f"column of '{path}'", name, names)
        kind = file.schema_arrow.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise VlpipeError(f"ids '{path}': column '{name}' is of {kind}; expected texts or whole numbers")
        return file.read([name]).column(0).cast(pa.large_string()).combine_chunks()
