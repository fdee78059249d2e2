"""What a metric and a task are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from vlpipe.foundation.config import Config
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.foundation.shelf import Shelf

IntArray = npt.NDArray[np.int64]

if TYPE_CHECKING:  # tables and figures read the ledger without loading torch
    from torch import Tensor

    from vlpipe.evaluate.codes import Codes
    from vlpipe.evaluate.edits import Edits

    Scores = Callable[[slice, slice], Tensor]
    Pairs = Callable[[IntArray, IntArray], Tensor]
    Temperatures = Callable[[slice], Tensor | None]
    Maps = Callable[[IntArray, IntArray], Tensor | None]
    Vectors = Callable[[Literal["image", "text"], IntArray], Tensor]
    Averages = Callable[[Sequence[IntArray]], Callable[[slice], Tensor]]

METRICS = Shelf("vlpipe.evaluate.metrics", "metric")
TASKS = Shelf("vlpipe.evaluate.tasks", "task")


class NothingToScoreError(UsageError):
    """A run that has nothing to score: its head reads images alone, or texts alone, or learns no score, or lacks
    the edits or latents that the task looks at.
    """


def no_pairs(images: IntArray, texts: IntArray) -> Tensor:
    """Raise `VlpipeError`: these inputs came without a head."""
    raise VlpipeError("these inputs have no scores of pairs; expected inputs of a head")


def no_vectors(side: Literal["image", "text"], positions: IntArray) -> Tensor:
    """Raise `VlpipeError`: these inputs came without a head."""
    raise VlpipeError("these inputs have no vectors; expected inputs of a head")


def no_averages(groups: Sequence[IntArray]) -> Callable[[slice], Tensor]:
    """Raise `VlpipeError`: these inputs came without a head."""
    raise VlpipeError("these inputs have no scores of averaged texts; expected inputs of a head")


def no_tensor(*_: Any) -> None:
    """What the head cannot tell."""


def no_zeros() -> dict[str, int]:
    """No row is known to be zero."""
    return {}


@dataclass(frozen=True)
class Inputs:
    """What a metric looks at. All positions are those in `image_ids` and `text_ids`; nothing is computed before
    it is called, and rows are encoded once.

    `text_image[j]` is the position of text j's image, -1 for a text without one: such a text, and an image
    without a text, asks nothing and is a candidate of the others. `scores(images, texts)` is the exact (images,
    texts) block of similarities; the full matrix is never needed at once. `columns` holds the texts' "role" and
    the task's manifest columns of the texts, `image_columns` those of the images.

    `pairs(images, texts)` is (rows,), the similarity of image `images[r]` with text `texts[r]`.
    `temperatures(texts)` is (texts,), the divisor of each text's scores before a softmax; None for a head without.
    `maps(images, texts)` is (rows, patches), each patch's share of a pair's score; None for a head without.
    `averages(groups)` are scores with one text a group, made of all its texts (positions): called with a slice of
    images it is (images, groups).
    `vectors(side, positions)` is (rows, *shape), what the head makes of images or texts.
    `edits` are what the head does to images by texts; None for a head that does not edit.
    `codes` are the latents of its autoencoder; None for a head without one.
    `beside` are inputs of another manifest, through the same head, where the task asked for one.
    `zeros()` counts, by role, the encoded rows that are zero throughout.
    """

    image_ids: Sequence[str]
    text_ids: Sequence[str]
    text_image: IntArray
    scores: Scores
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    image_columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    pairs: Pairs = no_pairs
    temperatures: Temperatures = no_tensor
    maps: Maps = no_tensor
    averages: Averages = no_averages
    vectors: Vectors = no_vectors
    edits: Edits | None = None
    codes: Codes | None = None
    beside: Inputs | None = None
    zeros: Callable[[], Mapping[str, int]] = no_zeros


@dataclass(frozen=True)
class Rows:
    """A value per query. `image` is the position of the image that the query belongs to, the unit that the
    bootstrap resamples, -1 for what belongs to none; `values` are columns as long as `query_ids`.
    """

    query_ids: npt.NDArray[np.object_]
    image: IntArray
    values: Mapping[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.image)

    def take(self, index: IntArray, image: IntArray) -> Rows:
        """Some rows, repeats allowed, under new image positions."""
        return Rows(self.query_ids[index], image, {name: v[index] for name, v in self.values.items()})


class Metric(Protocol):
    """Pure: rows from scores, numbers from rows. `Config`-free: options are the constructor's arguments.

    A metric of a set as a whole, to which resampling does harm, has `resampled = False`: no intervals then.
    """

    def rows(self, inputs: Inputs) -> Rows:
        """A value per query, saved with the run."""
        ...

    def summarise(self, rows: Rows) -> dict[str, float]:
        """Numbers by name; called again on resampled rows for the intervals.

        A number that these rows do not define is left out, never NaN and never a perfect score.
        """
        ...

    def counts(self, rows: Rows) -> dict[str, int]:
        """How many rows (queries or images) stand behind each number of `summarise`."""
        ...


class Task(Protocol):
    """Which texts and images of a manifest answer a question, and the metric that says how well.

    A task inherits from this class, which gives all that has a default.
    """

    Config: ClassVar[type[Config]]
    code: ClassVar[int]  # version: raised when the same rows would give other numbers
    roles: ClassVar[tuple[str, ...]]  # manifest roles of the texts that take part
    columns: ClassVar[tuple[str, ...]] = ()  # manifest columns of the texts that `Inputs.columns` holds
    image_columns: ClassVar[tuple[str, ...]] = ()  # likewise of the images
    headline: ClassVar[Mapping[str, str]]  # the numbers that a table shows, with the column titles
    sides: ClassVar[tuple[Literal["image", "text"], ...]] = ("image", "text")  # that a run must read
    scored: ClassVar[bool] = True  # whether the head must score; False where its vectors are enough
    legend: ClassVar[str] = ""  # what a reader of these numbers must know, for a table's caption
    config: Any  # the resolved `Config`

    def __init__(self, config: Any) -> None:
        self.config = config

    def metric(self) -> Metric:
        """What turns the scores into rows and numbers."""
        ...

    def check(self, inputs: Inputs) -> None:
        """Raise `VlpipeError` where the rows cannot answer the question and the metric does not say so."""
        return

    def notes(self, numbers: Mapping[str, float]) -> list[str]:
        """What a reader of these numbers must be told."""
        return []

    def titles(self, runs: Sequence[Rows]) -> Mapping[str, str]:
        """By number: the title that only the rows, of one run or of several in one table, can tell."""
        return {}


@runtime_checkable
class Drawn(Protocol):
    """A task with figures."""

    def draw(self, evaluations: Sequence[Any], folder: Path) -> list[Path]:
        """Figures of `answers.Evaluation`s of this task and one split, one a run; returns their paths."""
        ...
