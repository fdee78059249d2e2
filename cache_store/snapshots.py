"""What of an output is committed at one moment, and the way to its rows that suits memory and place."""

from __future__ import annotations

from typing import Literal, get_args

from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.block_reading import Blocks
from vlpipe.cache_store.committed import Committed, committed_blocks
from vlpipe.cache_store.errors import CorruptCacheError
from vlpipe.cache_store.group import Group
from vlpipe.cache_store.places import Place
from vlpipe.cache_store.strategies import Resident, Strategy, mapped
from vlpipe.foundation.errors import UnknownNameError, UsageError

StrategyName = Literal["auto", "resident", "mapped", "blocks"]
MEMORY_BUDGET = 4 << 30


def check_strategy(name: str) -> None:
    """Raises `UnknownNameError` for a strategy that there is not."""
    if name not in get_args(StrategyName):
        raise UnknownNameError("reading strategy", name, get_args(StrategyName))


def snapshot(
    path: Place, group: Group, array: StoredArray, strategy: StrategyName, memory_budget: int
) -> tuple[Committed, Strategy]:
    """Status and rows of one moment: when a writer replaced a block in between, both are read again.

    Raises `CorruptCacheError`, `CacheReadError`, `UsageError` for a strategy that place or budget do not allow.
    """
    while True:
        committed = committed_blocks(path, group, array)
        try:
            return committed, _way(strategy, array, committed, memory_budget)
        except CorruptCacheError:
            if committed_blocks(path, group, array).chunks == committed.chunks:
                raise


def _way(name: StrategyName, array: StoredArray, committed: Committed, memory_budget: int) -> Strategy:
    if name == "resident" or (name == "auto" and len(committed.chunks) * array.chunk_bytes <= memory_budget):
        return Resident(array, committed.chunks)
    if name == "blocks" or (name == "auto" and not array.mappable):
        return Blocks(array, committed.chunks, memory_budget)
    if not array.mappable:
        raise UsageError(f"'{array.folder}' is remote and cannot be mapped: use strategy blocks or resident")
    return mapped(array, committed.chunks)
