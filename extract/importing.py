"""Features that were made elsewhere become a store of a manifest: heads read them like any other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import Rows
from vlpipe.cache_store.errors import RowsError, StaleCacheError, ValueRangeError
from vlpipe.cache_store.group import output_names
from vlpipe.cache_store.ids import Ids, as_ids
from vlpipe.cache_store.layout import HASH_BYTES, ArraySpec, Side, Status, store_path
from vlpipe.cache_store.preview import check_room
from vlpipe.cache_store.writer import StoreWriter
from vlpipe.extract.outside import Stacked
from vlpipe.extract.pictures import content_hash
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.foundation.progress import progress
from vlpipe.manifests.manifest import Manifest

CODE = 1  # version: raised when the same file would give other rows
IMPORTED = "imported"  # the field of a fingerprint by which such a store is known
PIECE_BYTES = 8 << 20
SHOWN = 3
Content = NDArray[np.uint8]


@dataclass(frozen=True)
class Imported:
    """Rows counted over the manifest: `imported` now, `already` there, `missing` without a row in the file.

    `surplus` ids of the file are not in the manifest; `zero_norm` rows have no direction.
    """

    store: str
    side: Side
    output: str
    rows: int
    imported: int
    already: int
    missing: int
    missing_first: tuple[str, ...]
    surplus: int
    surplus_first: tuple[str, ...]
    zero_norm: int


def import_rows(
    features: Rows | Stacked,
    ids: Sequence[str] | Ids,
    manifest: Manifest,
    side: Side,
    name: str,
    *,
    cache: Path = Path("cache"),
    output: str = "features",
    dtype: str = "float16",
    source: str = "",
    allow_missing: bool = False,
) -> Imported:
    """Keep features (rows, *shape), one a row for each id, as the store `name` of a manifest's images or texts.

    Rows are matched by id, in any order; all are checked before any is kept. Ids of the manifest without a row
    are refused, or with `allow_missing` kept as failed. `source` says what made the features, in words that are
    the same for features that may be mixed (a head trained on one manifest and evaluated on another): it is their
    fingerprint. Without it the digest of the rows is. A row's content hash is that of its own bytes.

    Called again with the same it goes on where it stopped, and writes damaged blocks anew. Raises `RowsError` for
    shapes, dtypes and ids that do not fit, `ValueRangeError` that names the row, `StaleCacheError` where the store
    has other rows, `UsageError`, and what `StoreWriter` raises.
    """
    rows = features if isinstance(features, Stacked) else Stacked([features])
    store = store_path(cache, manifest.digest, _checked_name(name), side)
    _check_alone(store, output)
    match = _Match.of(as_ids(ids), len(rows), manifest, side, allow_missing)
    content, zero_norm = _contents(rows, match, ArraySpec(rows.shape, dtype))
    identity = {"source": source} if source else {"rows": hashlib.sha256(content.tobytes()).hexdigest()}
    writer = StoreWriter.open(
        store,
        manifest=manifest.digest,
        side=side,
        encoder=name,
        ids=match.wanted,
        outputs={output: ArraySpec(rows.shape, dtype)},
        fingerprints={output: {IMPORTED: str(CODE), **identity, "output": output, "dtype": dtype}},
        constants={},
    )
    imported = _write(writer, rows, match, content, output, dtype)
    return Imported(
        store=str(store),
        side=side,
        output=output,
        rows=len(match.wanted),
        imported=imported,
        already=len(match.wanted) - imported,
        missing=int((match.where < 0).sum()),
        missing_first=_first(match.wanted, match.where < 0),
        surplus=int(match.surplus.sum()),
        surplus_first=_first(match.given, match.surplus),
        zero_norm=zero_norm,
    )


def _checked_name(name: str) -> str:
    if not name or "#" in name or "::" in name:
        raise UsageError(f"--as '{name}': expected a name for the store, without # and ::")
    return name


def _check_alone(store: Path, output: str) -> None:
    """A row's content is its own bytes here, so that two outputs never are of the same content."""
    others = [name for name in output_names(store) if name != output] if store.exists() else []
    if others:
        raise UsageError(
            f"'{store}' has the output '{others[0]}' already; imported features have a store for each: give "
            "another --as NAME"
        )


@dataclass(frozen=True)
class _Match:
    """Where each `wanted` id of the manifest stands among the `given`, or -1; which of those are `surplus`."""

    wanted: Ids
    given: Ids
    where: NDArray[np.int64]
    surplus: NDArray[np.bool_]

    @classmethod
    def of(cls, given: Ids, rows: int, manifest: Manifest, side: Side, allow_missing: bool) -> _Match:
        """Raises `RowsError` for other numbers, for no common id, and for missing ones unless they are allowed."""
        if len(given) != rows:
            raise RowsError(f"{rows} rows of features and {len(given)} ids; expected as many of both")
        if not manifest.count(side):
            raise VlpipeError(f"manifest '{manifest.folder}' has no {side}s")
        wanted = manifest.table(side, [f"{side}_id"]).column(0).cast(pa.large_string()).combine_chunks()
        where = np.asarray(pc.fill_null(pc.index_in(wanted, value_set=given), -1), np.int64)
        found = cls(wanted, given, where, ~np.asarray(pc.is_in(given, value_set=wanted)))
        found._check(manifest, side, allow_missing)
        return found

    def _check(self, manifest: Manifest, side: Side, allow_missing: bool) -> None:
        missing = self.where < 0
        if missing.all():
            raise RowsError(
                f"none of the {len(self.given)} ids is one of the {side}s of manifest '{manifest.folder}': given "
                f"are ids such as '{self.given[0]}', expected such as '{self.wanted[0]}'"
            )
        if missing.any() and not allow_missing:
            raise RowsError(
                f"{missing.sum()} of {len(missing)} {side}s of manifest '{manifest.folder}' have no row, first "
                f"{list(_first(self.wanted, missing))}; add --allow-missing to keep those as failed"
            )


def _first(ids: Ids, chosen: NDArray[np.bool_]) -> tuple[str, ...]:
    return tuple(ids.take(pa.array(np.flatnonzero(chosen)[:SHOWN])).to_pylist())


def _pieces(match: _Match, rows: Stacked) -> Iterator[tuple[NDArray[np.int64], Rows]]:
    """Positions in the manifest and their rows, a few megabytes at a time, but for missing ones."""
    there = np.flatnonzero(match.where >= 0)
    step = max(1, PIECE_BYTES // rows.row_bytes)
    for start in range(0, len(there), step):
        positions = there[start : start + step]
        yield positions, rows.take(match.where[positions])


def _contents(rows: Stacked, match: _Match, spec: ArraySpec) -> tuple[Content, int]:
    """Content hashes (rows, 16), zeros for missing ones, and how many rows are zero; all values are checked."""
    content = np.zeros((len(match.where), HASH_BYTES), np.uint8)
    zero_norm = 0
    with progress("checking rows", int((match.where >= 0).sum())) as advance:
        for positions, piece in _pieces(match, rows):
            _check_values(piece, positions, match, np.dtype(spec.dtype))
            flat = piece.reshape(len(piece), -1)
            zero_norm += int((~flat.any(axis=1)).sum())
            for position, row in zip(positions, flat, strict=True):
                content[position] = np.frombuffer(content_hash(row.tobytes()), np.uint8)
            advance(len(piece))
    return content, zero_norm


def _check_values(piece: Rows, positions: NDArray[np.int64], match: _Match, dtype: np.dtype[Any]) -> None:
    with np.errstate(over="ignore"):  # found here, with its row
        good = np.isfinite(piece.astype(dtype, copy=False))
    if good.all():
        return
    place = tuple(np.argwhere(~good)[0])
    position, value = positions[place[0]], piece[place]
    where = (
        f"row {match.where[position]} of the features ('{match.wanted[int(position)]}') has the value {value:.6g}"
    )
    if np.isfinite(value):
        raise ValueRangeError(
            f"{where}, {dtype.name} holds at most {np.finfo(dtype).max:.6g}; nothing was imported: run again with "
            "--dtype float32"
        )
    raise ValueRangeError(f"{where}, expected a finite number; nothing was imported")


def _write(writer: StoreWriter, rows: Stacked, match: _Match, content: Content, output: str, dtype: str) -> int:
    """Write the blocks that are missing, damaged, or have failed rows that came now; returns rows imported."""
    _check_content(writer, content)
    late = [row for row in writer.failed().tolist() if match.where[row] >= 0]
    todo = sorted({*writer.missing(), *writer.lost(), *(row // writer.block_rows for row in late)})
    check_room(writer.path, writer.growth(todo))
    imported = 0
    with progress("importing rows", sum(len(writer.span(block)) for block in todo)) as advance:
        for block in todo:
            span = writer.span(block)
            part = slice(span.start, span.stop)
            with writer.claim(block) as mine:
                if mine:
                    values, status = _block(rows, match.where[part], dtype)
                    writer.write(block, {output: values}, status, content[part])
                    imported += len(span)
            advance(len(span))
    if writer.counts()[Status.ABSENT]:
        raise VlpipeError(
            f"some rows of '{writer.path}' are being imported by another process; run the same command again when "
            "that one has ended"
        )
    return imported


def _block(rows: Stacked, where: NDArray[np.int64], dtype: str) -> tuple[Rows, NDArray[np.uint8]]:
    """A block's rows, zeros for missing ones, and their status."""
    values = np.zeros((len(where), *rows.shape), dtype)
    values[where >= 0] = rows.take(where[where >= 0])
    return values, np.where(where < 0, Status.FAILED, Status.OK).astype(np.uint8)


def _check_content(writer: StoreWriter, content: Content) -> None:
    """Raise `StaleCacheError` where rows that are there already are not those that come now."""
    old = writer.content()
    changed = old.any(axis=1) & (old != content).any(axis=1)
    if changed.any():
        raise StaleCacheError(
            f"'{writer.path}' was made from something else: content_hash of {changed.sum()} of {len(changed)} "
            f"rows differs, first {list(_first(writer.ids, changed))}. Keep both with --as NAME, or use another "
            "--cache"
        )
