"""A store's rows in one file of another format, for other programs: safetensors, npz or Parquet.

Rows go from mapped chunks to the file piece by piece: two million rows cost the memory of a few thousand and of
their ids. safetensors' own writer wants the whole tensor in memory, so its header is written here.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import Rows
from vlpipe.cache_store.errors import NotCachedError, RowsError
from vlpipe.cache_store.ids import Ids
from vlpipe.cache_store.layout import Status
from vlpipe.cache_store.reader import FeatureSet, open_features
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.foundation.files import fsync_folder
from vlpipe.foundation.progress import Advance, silent

PIECE_BYTES = 8 << 20
HEADER_BYTES = 100_000_000  # more, and readers of safetensors refuse the file
FEATURES, IDS, STATUS, ABOUT = "features", "ids", "status", "vlpipe"  # the arrays of an npz
WORDS = np.array([kind.name.lower() for kind in Status])


@dataclass(frozen=True)
class Exported:
    """What was written: `rows` are in the file, `left_out` those of the store that are not usable."""

    store: str
    output: str
    file: str
    rows: int
    left_out: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int


def export_features(
    store: Path,
    output: str | None,
    file: Path,
    *,
    dtype: str | None = None,
    overwrite: bool = False,
    advance: Advance = silent,
) -> Exported:
    """Write the usable rows of one output, in row order, with their ids, to a file whose suffix says the format.

    `output` may be None where the store has one only; `dtype` is the store's, or 'float32'. The file is whole or
    not there. Raises `UsageError` for another suffix, `VlpipeError` for a file that exists or cannot be written,
    `NotCachedError` where no row is usable, and what `open_features` raises.
    """
    write = _writer(file)
    if file.exists() and not overwrite:
        raise VlpipeError(f"'{file}' exists; add --overwrite to replace it, or give another --out")
    rows = _Selected(store, output, dtype, advance)
    with _made_whole(file) as part:
        write(part, rows)
    features = rows.features
    return Exported(
        store=str(store),
        output=features.output,
        file=str(file),
        rows=len(rows.positions),
        left_out=len(features) - len(rows.positions),
        shape=features.shape,
        dtype=rows.dtype.name,
        bytes=file.stat().st_size,
    )


def _writer(file: Path) -> Callable[[Path, _Selected], None]:
    found = WRITERS.get(file.suffix.lower())
    if found is None:
        given = f"ends in '{file.suffix}'" if file.suffix else "has no suffix"
        raise UsageError(f"'{file}' {given}; expected one of {', '.join(WRITERS)}")
    return found


@contextmanager
def _made_whole(file: Path) -> Iterator[Path]:
    """A file beside the wanted one, which gets its name, synced, by one rename."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(file)
        fsync_folder(file.parent)
    except OSError as error:  # of the file: what the system says of a store comes as `CacheReadError`
        raise VlpipeError(f"cannot write '{file}': {error.strerror}; mend that, or give another --out") from None
    finally:
        with suppress(OSError):
            part.unlink()


class _Selected:
    """The usable rows of one output, piece by piece, in the dtype of the file."""

    def __init__(self, store: Path, output: str | None, dtype: str | None, advance: Advance) -> None:
        self.features = open_features(store, output, memory_budget=PIECE_BYTES)
        self.positions = self.features.usable_positions
        if not len(self.positions):
            raise NotCachedError(f"'{store}' has no usable row of '{output}'; nothing was written")
        self.dtype = np.dtype(dtype or self.features.dtype).newbyteorder("<")
        self.shape = (len(self.positions), *self.features.shape)
        self.ids: Ids = self.features.id_column.take(pa.array(self.positions))
        self._advance = advance

    def pieces(self) -> Iterator[tuple[slice, Rows]]:
        """Where a piece stands among the rows, and the piece."""
        size = self.dtype.itemsize * prod(self.features.shape)
        step = max(1, PIECE_BYTES // size)
        for start in range(0, len(self.positions), step):
            where = slice(start, min(start + step, len(self.positions)))
            yield where, self.features.take(self.positions[where]).astype(self.dtype, copy=False)
            self._advance(where.stop - where.start)

    def status(self, where: slice | None = None) -> NDArray[np.uint8]:
        """A `Status` a row."""
        return self.features.status[self.positions if where is None else self.positions[where]]

    def about(self) -> str:
        """JSON: what decides the values, and what they are of."""
        return json.dumps(_about(self.features, len(self.positions)), ensure_ascii=False)


def _about(features: FeatureSet, rows: int) -> Mapping[str, Any]:
    return {
        "manifest": features.manifest,
        "encoder": features.encoder,
        "side": features.side,
        "output": features.output,
        "shape": list(features.shape),
        "fingerprint": features.fingerprint,
        "constants": features.constants,
        "content": features.content_digest,
        "rows": rows,
        "left_out": len(features) - rows,
    }


def _safetensors(path: Path, rows: _Selected) -> None:
    """One tensor, named as the output; ids in the metadata `ids`, a JSON list."""
    size = prod(rows.shape) * rows.dtype.itemsize
    kind = {"float16": "F16", "float32": "F32"}[rows.dtype.name]
    tensor = {"dtype": kind, "shape": rows.shape, "data_offsets": (0, size)}
    about = {ABOUT: rows.about(), IDS: json.dumps(rows.ids.to_pylist(), ensure_ascii=False)}
    header = json.dumps({"__metadata__": about, rows.features.output: tensor}, ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > HEADER_BYTES:
        raise VlpipeError(
            f"{len(rows.ids)} ids make a safetensors header of {len(header)} bytes, of which its readers take at "
            f"most {HEADER_BYTES}; export to .parquet or .npz"
        )
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _, piece in rows.pieces():
            file.write(piece.data)


def _npz(path: Path, rows: _Selected) -> None:
    """Arrays `ids` (unicode), `status` (uint8), `features`, and `vlpipe`, a JSON text; nothing is pickled."""
    longest = pc.max(pc.utf8_length(rows.ids)).as_py()
    if pc.any(pc.ends_with(rows.ids, "\0")).as_py():
        raise RowsError("an id ends in a NUL, which NumPy's texts lose; export to .parquet or .safetensors")
    about = np.array(rows.about())
    with zipfile.ZipFile(path, "w") as archive:
        _member(archive, ABOUT, about.dtype, (), [about])
        text = np.dtype(f"<U{max(longest, 1)}")
        pieces = (np.array(rows.ids[i : i + 4096].to_pylist(), text) for i in range(0, len(rows.ids), 4096))
        _member(archive, IDS, text, rows.shape[:1], pieces)
        _member(archive, STATUS, np.dtype(np.uint8), rows.shape[:1], [rows.status()])
        _member(archive, FEATURES, rows.dtype, rows.shape, (piece for _, piece in rows.pieces()))


def _member(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], pieces: Any
) -> None:
    """One array of an npz, written piece by piece; the same bytes whenever it is written."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    file: IO[bytes]
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
        np.lib.format.write_array_header_2_0(file, header)
        for piece in pieces:
            file.write(piece.tobytes())


def _parquet(path: Path, rows: _Selected) -> None:
    """Columns `id`, `status` (ok or cut) and `feature`, a list of fixed size; a row's shape is in the metadata."""
    size = prod(rows.features.shape)
    numbers = pa.list_(pa.from_numpy_dtype(rows.dtype), size)
    fields = [("id", pa.large_string()), ("status", pa.string()), ("feature", numbers)]
    schema = pa.schema(fields, {ABOUT: rows.about()})
    # Not compressed: of embeddings it saves under a tenth.
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=["status"]) as writer:
        for where, piece in rows.pieces():
            flat = pa.FixedSizeListArray.from_arrays(pa.array(piece.reshape(-1)), type=numbers)
            words = pa.array(WORDS[rows.status(where)], pa.string())
            writer.write_batch(pa.record_batch([rows.ids[where], words, flat], schema=schema))


WRITERS = {".safetensors": _safetensors, ".npz": _npz, ".parquet": _parquet}
