"""Opening a store for writing: made, grown by outputs, or refused field by field."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.errors import CorruptCacheError, StaleCacheError
from vlpipe.cache_store.fingerprint import Fingerprint, differences
from vlpipe.cache_store.group import Group, add_output, create_store
from vlpipe.cache_store.ids import Ids
from vlpipe.cache_store.layout import (
    CONTENT_HASH,
    LEAST_ROWS,
    STATUS,
    ArraySpec,
    Side,
    check_output_name,
    default_block_rows,
    power_of_two,
)
from vlpipe.cache_store.mending import mend_books, mend_folders, mend_group, mend_ids, mend_output
from vlpipe.foundation.errors import UsageError


def open_for_writing(
    path: Path, asked: Group, ids: Ids, outputs: Mapping[str, ArraySpec], fingerprints: Mapping[str, Fingerprint]
) -> tuple[Group, dict[str, StoredArray], list[str]]:
    """The store's group, its arrays of these outputs, of status and of content hash, and what was mended of these.

    That is a line for each damaged file of metadata that was written anew.
    """
    if not path.exists():
        create_store(path, asked, ids)
    mended: list[str] = []
    try:
        group = checked_group(path, asked, outputs, fingerprints)
    except CorruptCacheError:
        group, mended = mend_group(path, asked, ids, outputs)
    mend_folders(path)
    mended += mend_ids(path, group, ids) + mend_books(path, group)
    for name, spec in outputs.items():
        mended += mend_output(path, name, group, spec, fingerprints[name])
    group = Group.open(path)
    return group, open_outputs(path, group, outputs, fingerprints), mended


def checked_group(
    path: Path, asked: Group, outputs: Mapping[str, ArraySpec], fingerprints: Mapping[str, Fingerprint]
) -> Group:
    """The store's group; raises `StaleCacheError` that names every difference to what is asked."""
    # Told with what else differs: another model's constants say less than its weights.
    foreign = _foreign_outputs(path, _wanted(outputs, fingerprints))
    try:
        group = Group.open(path)
    except CorruptCacheError:
        _refuse(path, foreign)
        raise
    _refuse(path, differences(_group_fields(group), _group_fields(asked)) + foreign)
    return group


def open_outputs(
    path: Path, group: Group, outputs: Mapping[str, ArraySpec], fingerprints: Mapping[str, Fingerprint]
) -> dict[str, StoredArray]:
    """The arrays of these outputs, added where the store lacks them, of status and of content hash."""
    wanted = _wanted(outputs, fingerprints)
    _refuse(path, _foreign_outputs(path, wanted))
    for name, spec in outputs.items():
        if not (path / name).exists():
            add_output(path, name, group, spec, fingerprints[name])
    _refuse(path, _foreign_outputs(path, wanted))  # another process may have added one since
    return {name: StoredArray.open(path / name) for name in (*outputs, STATUS, CONTENT_HASH)}


def stored_dtype(path: Path, output: str) -> str:
    """The dtype that a store keeps an output in; raises `CorruptCacheError`."""
    return StoredArray.open(path / output).dtype.name


def checked_block_rows(
    block_rows: int | None, rows: int, outputs: Mapping[str, ArraySpec], widest: int, side: Side
) -> int:
    """The asked or the default rows per block; raises `UsageError` for unusable outputs or block sizes."""
    if not outputs:
        raise UsageError("no outputs asked for; expected at least one, for example --output pooled")
    for name in outputs:
        check_output_name(name)
    if block_rows is None:
        return default_block_rows(rows, outputs.values(), widest, LEAST_ROWS[side])
    if block_rows < 1 or block_rows != power_of_two(block_rows):
        raise UsageError(f"{block_rows} rows per block: expected a power of two")
    return block_rows


def _group_fields(group: Group) -> dict[str, str]:
    constants = {f"constants.{name}": repr(value) for name, value in group.constants.items()}
    return {
        "manifest": group.manifest,
        "side": group.side,
        "ids": f"{group.rows} rows of digest {group.ids[:12]}",
        **constants,
    }


def _array_fields(shape: tuple[int, ...], dtype: str, fingerprint: Fingerprint) -> dict[str, str]:
    return {**fingerprint, "shape": str(shape), "dtype": dtype}


def _wanted(outputs: Mapping[str, ArraySpec], fingerprints: Mapping[str, Fingerprint]) -> dict[str, Fingerprint]:
    return {name: _array_fields(spec.shape, spec.dtype, fingerprints[name]) for name, spec in outputs.items()}


def _foreign_outputs(path: Path, wanted: Mapping[str, Fingerprint]) -> list[str]:
    """What differs, field by field, for the outputs that the store has already, and whose metadata is whole."""
    found: list[str] = []
    for name, fields in wanted.items():
        with suppress(CorruptCacheError):
            array = StoredArray.open(path / name)
            cached = _array_fields(array.shape, array.dtype.name, array.fingerprint)
            found += [f"{name}.{difference}" for difference in differences(cached, fields)]
    return found


def _refuse(path: Path, found: list[str]) -> None:
    if found:
        raise StaleCacheError(
            f"'{path}' was made from something else: {'; '.join(found)}. Keep both with --as NAME, or use another "
            "--cache"
        )
