"""Rows of two feature sets that belong together, found by id in one indexed call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vlpipe.cache_store.arrays import Rows
from vlpipe.cache_store.errors import RowsError, StaleCacheError
from vlpipe.cache_store.ids import positions_of, text_column
from vlpipe.cache_store.order import Positions
from vlpipe.cache_store.reader import FeatureSet
from vlpipe.foundation.errors import UsageError


@dataclass(frozen=True)
class Pairs:
    """Positions of rows that belong together, pair by pair: `left` (pairs,) in the left set, `right` in the right.

    All are usable, and in the order of the right set's rows.
    """

    left: Positions
    right: Positions
    _sets: tuple[FeatureSet, FeatureSet] = field(repr=False)

    def __len__(self) -> int:
        """Pairs."""
        return len(self.right)

    def take(self, pairs: Any = slice(None)) -> tuple[Rows, Rows]:
        """Both rows of some pairs (numbers, a slice or a mask; all by default), (pairs, *shape) each.

        Raises as `FeatureSet.take` does.
        """
        left, right = self._sets
        return left.take(self.left[pairs]), right.take(self.right[pairs])


def join(left: FeatureSet, right: FeatureSet, keys: Sequence[str | None] | None = None) -> Pairs:
    """The pairs of usable rows of two sets of one manifest.

    `keys` (rows of the right set,) gives for each the id of its row on the left, such as each caption's image;
    rows with None are left out. Without keys, rows with the same id belong together: two encoders over one side.

    Raises `StaleCacheError` for sets of different manifests, `UsageError` for two sides without keys, `RowsError`
    for another number of keys or a key that the left set does not have.
    """
    if left.manifest != right.manifest:
        raise StaleCacheError(
            f"'{left.path}' is of manifest {left.manifest}, '{right.path}' of {right.manifest}; join sets that "
            "were extracted from one manifest"
        )
    if keys is None:
        where = _same_ids(left, right)
        there: Any = np.ones(len(right), np.bool_)
    else:
        column = text_column(keys)
        if len(column) != len(right):
            raise RowsError(f"{len(column)} keys for the {len(right)} rows of '{right.path}': expected one a row")
        there = np.asarray(column.is_valid())
        where = np.zeros(len(right), np.int64)
        where[there] = positions_of(left.id_column, column.drop_null())
    there &= right.usable & left.usable[where]
    chosen = np.flatnonzero(there)
    return Pairs(where[chosen], chosen, (left, right))


def _same_ids(left: FeatureSet, right: FeatureSet) -> Positions:
    """Where each row of the right set lies in the left one: at its own place, as both hold the manifest's rows."""
    if left.side != right.side:
        raise UsageError(
            f"'{left.path}' holds {left.side}s and '{right.path}' {right.side}s: give keys, the {left.side} id of "
            f"each {right.side}"
        )
    if left.id_column.equals(right.id_column):
        return np.arange(len(right))
    return positions_of(left.id_column, right.id_column)
