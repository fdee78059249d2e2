"""Cosines of images with their own captions, before and after editing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from vlpipe.evaluate.contracts import METRICS, Inputs, Metric, Task
from vlpipe.evaluate.tasks.retrieval import Retrieval
from vlpipe.foundation import config

if TYPE_CHECKING:
    from vlpipe.evaluate.answers import Evaluation


class PairCosines(Task):
    """All captions of the split with their images."""

    class Config(config.Config):
        """There is nothing to choose."""

    code: ClassVar[int] = 1
    roles: ClassVar[tuple[str, ...]] = ("caption",)
    headline: ClassVar[Mapping[str, str]] = {
        "cosine_original": "cosine with the caption, original",
        "cosine_edited": "cosine with the caption, edited",
    }

    def metric(self) -> Metric:
        """Mean cosines."""
        made: Metric = METRICS.load("pair_cosines")()
        return made

    def check(self, inputs: Inputs) -> None:
        """Raise `VlpipeError` as retrieval does, without images or captions."""
        Retrieval(Retrieval.Config()).check(inputs)

    def draw(self, evaluations: Sequence[Evaluation], folder: Path) -> list[Path]:
        """A histogram a run, before and after; and the first run against each other one that edits."""
        from vlpipe.evaluate.histograms import draw

        return draw(evaluations, folder)
