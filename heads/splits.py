"""Which images train, choose and test: the manifest's column, or a seeded draw."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vlpipe.foundation.errors import UsageError

StrArray = npt.NDArray[np.str_]
COLUMN = "column"
PARTS = ("train", "val", "test")
ALIASES = {"training": "train", "validation": "val", "valid": "val", "dev": "val", "testing": "test"}
RANDOM = re.compile(r"random:([0-9.]+)/([0-9.]+)/([0-9.]+)@([0-9]+)")


def canonical(split: str) -> str:
    """One name for each part, however a publisher spells it: `validation` -> `val`."""
    return ALIASES.get(split, split)


def fractions(rule: str) -> tuple[tuple[float, ...], int] | None:
    """Shares of train, val and test, and the seed; None for `column`. Raises `UsageError` for anything else."""
    if rule == COLUMN:
        return None
    found = RANDOM.fullmatch(rule)
    try:
        shares = tuple(float(part) for part in found.groups()[:3]) if found else ()
    except ValueError:
        shares = ()
    if not found or abs(sum(shares) - 1) > 1e-9:
        raise UsageError(
            f"split rule '{rule}': expected 'column' or three shares that sum to 1 and a seed, "
            "for example 'random:0.7/0.15/0.15@0'"
        )
    return shares, int(found.group(4))


def split_of(rule: str, ids: Sequence[str], column: Sequence[str | None]) -> StrArray:
    """The part of each image, '' for none: (images,).

    A random rule draws from the sorted ids, so it depends on them and its seed, and not on the rows' order, on
    rows that failed, or on a head's seed. Parts are cut at rounded shares of the images.
    """
    chosen = fractions(rule)
    if chosen is None:
        return np.array([canonical(split or "") for split in column], dtype=np.str_)
    shares, seed = chosen
    order = np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)
    drawn = np.random.default_rng(seed).permutation(order)
    first, second = round(shares[0] * len(ids)), round((shares[0] + shares[1]) * len(ids))
    parts = np.full(len(ids), PARTS[2], dtype="<U5")
    parts[drawn[:second]] = PARTS[1]
    parts[drawn[:first]] = PARTS[0]
    return parts
