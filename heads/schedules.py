"""Numbers that change from epoch to epoch."""

from __future__ import annotations

from collections.abc import Sequence


def linear(start: float, end: float, epoch: int, epochs: int) -> float:
    """From `start` at the first of some epochs, 0-based, to `end` at the last; `start` where there is one."""
    return start + (end - start) * min(1.0, epoch / max(1, epochs - 1))


def stepped(values: Sequence[float], epoch: int, epochs: int) -> float:
    """Each value for an equal share of the epochs, in order."""
    return values[min(len(values) - 1, epoch * len(values) // max(1, epochs))]
