"""How sure a number is: intervals over images, spread over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vlpipe.evaluate.contracts import Rows

Interval = tuple[float, float]


@dataclass(frozen=True)
class Bootstrap:
    """Percentile intervals from `replicates` draws of as many images as there are, with a seed."""

    replicates: int = 1000
    seed: int = 0
    level: float = 0.95

    def intervals(self, rows: Rows, summarise: Callable[[Rows], dict[str, float]]) -> dict[str, Interval]:
        """Low and high end of each number that `summarise` gives.

        An image is drawn with all its rows, and each draw counts as an image of its own. A number that
        no draw defines has no interval.
        """
        if not len(rows):
            return {}
        found: dict[str, list[float]] = {}
        for draw in self.draws(rows):
            for name, value in summarise(draw).items():
                found.setdefault(name, []).append(value)
        tail = 50 * (1 - self.level)
        return {
            name: (float(low), float(high))
            for name, values in found.items()
            for low, high in [np.percentile(values, [tail, 100 - tail])]
        }

    def draws(self, rows: Rows) -> Iterator[Rows]:
        """The rows of each replicate."""
        order = np.argsort(rows.image, kind="stable")
        _, starts, sizes = np.unique(rows.image[order], return_index=True, return_counts=True)
        draw = np.random.default_rng(self.seed)
        for _ in range(self.replicates):
            images = draw.integers(0, len(starts), len(starts))
            drawn = sizes[images]
            ends = np.cumsum(drawn)
            within = np.arange(ends[-1]) - np.repeat(ends - drawn, drawn)
            index = order[np.repeat(starts[images], drawn) + within]
            yield rows.take(index, np.repeat(np.arange(len(images)), drawn))


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of `n` values; with one value there is no deviation."""

    mean: float
    std: float | None
    n: int


def spread(values: Sequence[float]) -> Spread:
    """Spread of one number over seeds; `values` are at least one."""
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(math.fsum(values) / len(values), std, len(values))
