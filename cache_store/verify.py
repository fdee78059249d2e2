"""Every file of a store checked against what was committed: nothing is written, and nothing ends it early."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.errors import CorruptCacheError, StaleCacheError
from vlpipe.cache_store.group import BOOKS, Group, output_names
from vlpipe.cache_store.ids import Ids, read_ids
from vlpipe.cache_store.layout import (
    CONTENT_HASH,
    HASH_BYTES,
    STATUS,
    USABLE,
    Status,
    lock_path,
    marker_path,
    rows_path,
)
from vlpipe.cache_store.locks import is_held
from vlpipe.cache_store.losses import losses
from vlpipe.cache_store.markers import Marker
from vlpipe.cache_store.mending import block_rows_of, markers_of
from vlpipe.cache_store.places import read_whole
from vlpipe.foundation.errors import VlpipeError

ENCODES = "the same `vlpipe extract` encodes only these rows again"
WRITES = "the same `vlpipe extract` writes damaged metadata and ids anew"
Advance = Callable[[int], None]  # by blocks


@dataclass(frozen=True)
class Damage:
    """One file that is not what was committed: `what` is wrong with it, which `rows` it concerns, what `todo`.

    `output` is empty where it concerns all outputs.
    """

    file: Path
    output: str
    rows: range
    what: str
    todo: str


def verify_store(path: Path, advance: Advance = lambda blocks: None) -> list[Damage]:
    """All damage of a store: metadata, ids, markers, and every byte of every committed chunk.

    Empty for a store that is right, also for one that is not complete or is being written: rows that are not
    committed are no damage, but files of theirs that no writer is at are. Raises `NotCachedError` for no store,
    `CacheReadError` where the system refuses to read.
    """
    path = Path(path)
    group, found = _group(path)
    if group is None:
        return found
    found += _ids(path, group)
    arrays, lost = _arrays(path, group)
    found += lost

    for block, first in _check_blocks(path, group, arrays, _counted(group.blocks, advance)).items():
        if first:
            found += _check_again(path, group, arrays, block)
    return found


def store_ids(path: Path) -> Ids | None:
    """The ids of a store, to name damaged rows; None where they are damaged too."""
    try:
        group = Group.open(path)
        return read_ids(path, group.table, group.rows)
    except VlpipeError:
        return None


def stored_content(path: Path) -> NDArray[np.uint8]:
    """What was encoded, (rows, 16): content hashes of usable rows; zeros for others and for damaged blocks.

    Raises `NotCachedError`, `CorruptCacheError` for damaged metadata.
    """
    group = Group.open(path)
    status, content = (StoredArray.open(path / name) for name in BOOKS)
    found = np.zeros((group.rows, HASH_BYTES), np.uint8)
    for block in group.blocks:
        span = group.span(block)
        with suppress(CorruptCacheError):
            if marker := group.marker(path, block):
                usable = np.isin(status.read_rows(span, marker.files[STATUS].crc32c), USABLE)
                hashes = content.read_rows(span, marker.files[CONTENT_HASH].crc32c)
                found[span.start : span.stop] = np.where(usable[:, None], hashes, 0)
    return found


def leftovers(path: Path) -> list[Path]:
    """Unfinished files and folders of writers, dead or alive, in a store and beside it; they harm nothing."""
    return sorted([*path.rglob("*.part"), *path.parent.glob(f".{escape(path.name)}.*.part")])


def _counted(blocks: Iterable[int], advance: Advance) -> Iterator[int]:
    for block in blocks:
        yield block
        advance(1)


def _group(path: Path) -> tuple[Group | None, list[Damage]]:
    """The group; a damaged one as far as its arrays and markers tell, which is enough to check these."""
    file = path / "zarr.json"
    try:
        return Group.open(path), []
    except StaleCacheError as error:
        return None, [Damage(file, "", range(0), str(error), "update vlpipe")]
    except CorruptCacheError:
        pass
    markers = list(markers_of(path))
    rows = max((marker.stop for marker in markers), default=0)
    with suppress(CorruptCacheError):
        rows = StoredArray.open(path / STATUS).rows
    damage = Damage(file, "", range(rows), "is missing or damaged, or not vlpipe's", WRITES)
    size = block_rows_of(path, rows)
    if not markers or size is None:
        return None, [damage]
    return Group("", "image", "", {}, rows, size, markers[0].ids, "", ""), [damage]


def _ids(path: Path, group: Group) -> list[Damage]:
    """Not checked where the group, which has their seal, is damaged: they are written anew with it."""
    try:
        if group.table:
            read_ids(path, group.table, group.rows)
    except CorruptCacheError:
        return [Damage(rows_path(path), "", range(group.rows), "is missing or damaged", WRITES)]
    return []


def _arrays(path: Path, group: Group) -> tuple[dict[str, StoredArray], list[Damage]]:
    """The arrays by name, but for those whose metadata is damaged."""
    committed = {name for marker in markers_of(path) for name in marker.files}
    arrays, found = {}, []
    for name in sorted({*output_names(path), *BOOKS, *committed}):
        try:
            arrays[name] = StoredArray.open(path / name)
        except (CorruptCacheError, StaleCacheError):
            rows = range(group.rows if name in committed else 0)
            output = "" if name in BOOKS else name
            found.append(Damage(path / name / "zarr.json", output, rows, "is missing or damaged", WRITES))
    return arrays, found


def _check_blocks(
    path: Path, group: Group, arrays: dict[str, StoredArray], blocks: Iterable[int]
) -> dict[int, list[Damage]]:
    found: dict[int, list[Damage]] = {}
    statuses: dict[int, Marker] = {}

    def committed() -> Iterator[Marker]:
        for block in blocks:
            found[block] = []
            try:
                marker = group.marker(path, block)
            except CorruptCacheError:
                found[block] = [_of_marker(path, group, block, "is damaged or of other rows")]
                continue
            if marker:
                found[block] = list(_seals(path, arrays, marker))
                statuses[block] = marker
                yield marker
            elif any(array.path(n).exists() for array in arrays.values() for n in array.chunks(group.span(block))):
                what = "is missing, though files that it commits are there: it was lost, or their writer killed"
                found[block] = [_of_marker(path, group, block, what)]

    for loss in losses(arrays, committed()):
        output = "" if loss.output in BOOKS else loss.output
        rows = loss.rows if output else group.span(loss.block)
        found[loss.block].append(Damage(Path(str(loss.array.path(loss.chunk))), output, rows, loss.why, ENCODES))
    for block, marker in statuses.items():
        if STATUS in arrays and not found[block]:
            found[block] += _counts(path, group, arrays[STATUS], marker)
    return found


def _check_again(path: Path, group: Group, arrays: dict[str, StoredArray], block: int) -> list[Damage]:
    """A block until no writer has replaced it while its files were read one by one; none while one is at it."""
    while True:
        before = _marker_bytes(path, block)
        found = _check_blocks(path, group, arrays, [block])[block]
        if is_held(lock_path(path, block)):
            return []
        if _marker_bytes(path, block) == before:
            return found


def _marker_bytes(path: Path, block: int) -> bytes:
    try:
        return read_whole(marker_path(path, block))
    except FileNotFoundError:
        return b""


def _of_marker(path: Path, group: Group, block: int, what: str) -> Damage:
    return Damage(marker_path(path, block), "", group.span(block), what, ENCODES)


def _seals(path: Path, arrays: dict[str, StoredArray], marker: Marker) -> Iterator[Damage]:
    """Arrays whose metadata is whole, but not what the block was committed with."""
    for name, files in marker.files.items():
        if name in arrays and arrays[name].seal != files.seal:
            rows = range(marker.start, marker.stop)
            what = f"is not the one that block {marker.block} was committed with"
            yield Damage(path / name / "zarr.json", "" if name in BOOKS else name, rows, what, ENCODES)


def _counts(path: Path, group: Group, array: StoredArray, marker: Marker) -> Iterator[Damage]:
    """The marker's counts of a block's status, against the status itself."""
    try:
        status = array.read_rows(group.span(marker.block), marker.files[STATUS].crc32c)
    except CorruptCacheError:  # read well a moment ago: a writer is at it, and the block is looked at again
        status = np.zeros(0, np.uint8)
    counts = {kind.name.lower(): int((status == kind).sum()) for kind in Status if kind}
    if counts != dict(marker.status):
        yield _of_marker(path, group, marker.block, f"counts {dict(marker.status)}, the status has {counts}")
