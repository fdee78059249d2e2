"""What retrieval loses when only the candidates of a plain cosine are edited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from vlpipe.evaluate.contracts import METRICS, Metric
from vlpipe.evaluate.tasks.retrieval import Retrieval


class TwoStage(Retrieval):
    """Images and captions as in `retrieval`."""

    class Config(Retrieval.Config):
        """`candidates`: how many of each query are scored exactly."""

        candidates: int = Field(default=100, ge=1)

    code: ClassVar[int] = 2
    headline: ClassVar[Mapping[str, str]] = {
        f"{way}_recall@{k}{suffix}": f"{title} R@{k}{words}"
        for way, title in (("i2t", "I→T"), ("t2i", "T→I"))
        for k in (1, 5, 10)
        for suffix, words in (("", ", two stages"), ("_exact", ", exact"), ("_drop", ", lost"))
    }
    legend: ClassVar[str] = "recall in percent, ties count against the query"
    config: Config

    def metric(self) -> Metric:
        """Recalls of both stages and of the exact scores."""
        made: Metric = METRICS.load("two_stage")(self.config.ks, self.config.candidates)
        return made

    def notes(self, numbers: Mapping[str, float]) -> list[str]:
        """Nothing beside the numbers."""
        return []
