"""What a metric and a task are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from vlpipe.foundation.shelf import Shelf

METRICS = Shelf("vlpipe.evaluate.metrics", "metric")
TASKS = Shelf("vlpipe.evaluate.tasks", "task")

IntArray = npt.NDArray[np.int64]
Scores = Callable[[slice, slice], Tensor]


@dataclass(frozen=True)
class Inputs:
    """What a metric looks at.

    `text_image[j]` is the position in `image_ids` of text j's image, -1 for a text without one.
    `scores(images, texts)` is the exact (images, texts) block of similarities; the full matrix is never
    needed at once. `columns` holds manifest columns of the texts, `image_columns` of the images.
    """

    image_ids: Sequence[str]
    text_ids: Sequence[str]
    text_image: IntArray
    scores: Scores
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    image_columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """A value per query. `image` is the position of the image that the query belongs to, the unit that the
    bootstrap resamples; `values` are columns as long as `query_ids`.
    """

    query_ids: Sequence[str]
    image: IntArray
    values: Mapping[str, npt.NDArray[Any]]

    def take(self, index: IntArray, image: IntArray) -> Rows:
        """Some rows, repeats allowed, under new image positions."""
        return Rows([self.query_ids[i] for i in index], image, {name: v[index] for name, v in self.values.items()})


class Metric(Protocol):
    """Pure: rows from scores, numbers from rows. `Config`-free: options are the constructor's arguments."""

    def rows(self, inputs: Inputs) -> Rows:
        """A value per query, saved with the run."""
        ...

    def summarise(self, rows: Rows) -> dict[str, float]:
        """Numbers by name; called again on resampled rows for the intervals."""
        ...


class Task(Protocol):
    """Which texts and images of a manifest answer a question, and the metrics that say how well."""

    metrics: ClassVar[tuple[str, ...]]
    roles: ClassVar[tuple[str, ...]]  # text roles that take part

    def check(self, inputs: Inputs) -> None:
        """Raise `VlpipeError` where the rows cannot answer the question."""
        ...
