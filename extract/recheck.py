"""A store compared with what it was made of: pictures and texts by content, sampled rows by encoding again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.arrays import Rows, StoredArray
from vlpipe.cache_store.errors import CorruptCacheError, StaleCacheError
from vlpipe.cache_store.fingerprint import differences
from vlpipe.cache_store.group import Group, output_names
from vlpipe.cache_store.layout import ArraySpec
from vlpipe.cache_store.markers import Marker
from vlpipe.cache_store.verify import ENCODES, Damage, stored_content
from vlpipe.extract.blocks import CONTENT
from vlpipe.extract.contracts import Encoder
from vlpipe.extract.importing import IMPORTED
from vlpipe.extract.load import fingerprints
from vlpipe.extract.pictures import content_hash
from vlpipe.extract.preparing import prepare_alone
from vlpipe.extract.replaced import replaced_rows
from vlpipe.extract.rows import Work, encode_rows
from vlpipe.manifests.manifest import Manifest

STEP = 16_384  # rows of one step over a manifest
REPLACED = "is not what was encoded: it was replaced since"
MADE_IT = "Give --encoder, with --set, what made it"
TOLERANCE = {"float16": 2e-3, "float32": 1e-4}  # four roundings to float16, or other batch mates


@dataclass(frozen=True)
class Sample:
    """What encoding again showed: `rows` compared, and by output the `worst` distance; `damage` beyond it."""

    rows: int
    worst: Mapping[str, float]
    damage: list[Damage]


def is_imported(store: Path) -> bool:
    """Whether a store was not encoded from pictures or texts, so that these say nothing about it."""
    return any(IMPORTED in StoredArray.open(store / name).fingerprint for name in output_names(store))


def replaced_content(store: Path, manifest: Manifest, workers: int, unread: list[int]) -> Iterator[Damage]:
    """The rows whose picture or text is not what was encoded.

    A file that cannot be read proves nothing: its row is added to `unread`. Raises `CorruptCacheError` for a store
    whose metadata is damaged.
    """
    side = Group.open(store).side
    cached = stored_content(store)
    batches = manifest.batches(side, [CONTENT[side]], STEP)
    items = (item for batch in batches for item in batch.column(0).to_pylist())
    if side == "image":
        rows = np.fromiter(replaced_rows(manifest.image_root, items, cached, workers, unread), np.int64)
        for row, path in zip(rows.tolist(), _take(manifest, side, rows, CONTENT[side]), strict=True):
            yield Damage(manifest.image_root / path, "", range(row, row + 1), REPLACED, ENCODES)
        return
    for row, text in enumerate(items):
        if cached[row].any() and content_hash(text.encode()) != cached[row].tobytes():
            yield Damage(manifest.folder, "", range(row, row + 1), f"a text {REPLACED}", ENCODES)


def recompute(
    store: Path, manifest: Manifest, encoder: Encoder, count: int, *,
    tolerance: float | None = None, batch_size: int = 64, workers: int = 1, seed: int = 0,
) -> Sample:  # fmt: skip
    """Encode `count` usable rows again, drawn by the seed, and compare every output that they have.

    The distance of two rows is that of L2 in relation to the stored row's norm. Up to `tolerance` they count as
    equal; by default 2e-3 for float16, 1e-4 for float32. Raises `StaleCacheError` with every field in which the
    encoder is not the one that made the store.
    """
    group = Group.open(store)
    arrays = {name: StoredArray.open(store / name) for name in output_names(store)}
    _check_encoder(store, encoder, group, arrays)
    content = stored_content(store)
    rows = _drawn(content, count, seed)
    specs = {name: ArraySpec(array.shape, array.dtype.name) for name, array in arrays.items()}
    work = Work(encoder, group.side, specs, manifest.image_root, batch_size, workers)
    ids, items = (_take(manifest, group.side, rows, name) for name in (f"{group.side}_id", CONTENT[group.side]))
    found = encode_rows(work, prepare_alone(work, ids, items), len(rows))
    worst = dict.fromkeys(arrays, 0.0)
    damage = []
    for place, row in enumerate(rows.tolist()):
        here = range(row, row + 1)
        if place in found.failures:
            what = f"'{items[place]}' cannot be encoded any more: {found.failures[place]}"
            damage.append(Damage(store, "", here, what, "look at that item"))
            continue
        if (found.content_hash[place] != content[row]).any():
            damage.append(Damage(store, "", here, f"'{items[place]}' {REPLACED}", ENCODES))
            continue
        for name, values in _stored(store, group, arrays, row):
            distance = relative_distance(values, found.rows[name][place])
            worst[name] = max(worst[name], distance)
            limit = TOLERANCE[specs[name].dtype] if tolerance is None else tolerance
            if not distance <= limit:
                what = f"is {distance:.2g} of its norm away from the row encoded again, more than {limit:g}"
                damage.append(Damage(store / name, name, here, what, "delete the store and encode it again"))
    return Sample(len(rows), worst, damage)


def relative_distance(stored: Rows, again: Rows) -> float:
    """|again - stored| / |stored| in float64, beyond the last step of the stored dtype in every value.

    Infinite where only the stored row is zero, and where a value is not finite.
    """
    first, second = (np.asarray(values, np.float64).ravel() for values in (stored, again))
    step = float(np.finfo(stored.dtype).smallest_subnormal) * len(first) ** 0.5
    gap, norm = float(np.linalg.norm(second - first)), float(np.linalg.norm(first))
    if gap <= step:
        return 0.0
    return (gap - step) / norm if norm and np.isfinite(gap) else float("inf")


def _check_encoder(store: Path, encoder: Encoder, group: Group, arrays: Mapping[str, StoredArray]) -> None:
    if group.side not in encoder.sides():
        raise StaleCacheError(f"'{store}' holds {group.side}s, which the encoder does not read. {MADE_IT}")
    known = encoder.outputs(group.side)
    specs = {name: ArraySpec(array.shape, array.dtype.name) for name, array in arrays.items() if name in known}
    asked = fingerprints(encoder, group.side, specs)
    found = [f"it has no output '{name}'" for name in arrays.keys() - known.keys()]
    found += [
        f"{name}.{difference}"
        for name in specs
        for difference in differences(arrays[name].fingerprint, asked[name])
    ]
    if found:
        raise StaleCacheError(f"'{store}' was made with another encoder: {'; '.join(found)}. {MADE_IT}")


def _drawn(content: NDArray[np.uint8], count: int, seed: int) -> NDArray[np.int64]:
    """Rows that were encoded, without repeats, ascending."""
    usable = np.flatnonzero(content.any(axis=1))
    draw = np.random.default_rng(seed)
    return np.sort(draw.choice(usable, min(count, len(usable)), replace=False))


def _take(manifest: Manifest, side: str, rows: NDArray[np.int64], column: str) -> list[str]:
    """A column's values at ascending rows, without the rest of it in memory."""
    found: list[str] = []
    for number, batch in enumerate(manifest.batches(side, [column], STEP)):  # type: ignore[arg-type]
        first, last = np.searchsorted(rows, (number * STEP, (number + 1) * STEP))
        if first < last:
            found += batch.column(0).take(rows[first:last] - number * STEP).to_pylist()
    return found


def _stored(store: Path, group: Group, arrays: Mapping[str, StoredArray], row: int) -> Iterator[tuple[str, Rows]]:
    """A row's values by output, of those that have it; damaged ones are left to the check of checksums."""
    try:
        marker: Marker | None = group.marker(store, row // group.block_rows)
    except CorruptCacheError:
        return
    for name, array in arrays.items():
        if marker and name in marker.files and marker.files[name].seal == array.seal:
            chunk = row // array.chunk_rows
            first = array.chunks(range(marker.start, marker.stop)).start
            try:
                values = array.map(chunk, marker.files[name].crc32c[chunk - first])
            except CorruptCacheError:
                continue
            yield name, values[row - array.span(chunk).start]
