"""Which of two images goes with which of two captions of the same words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from vlpipe.evaluate.contracts import METRICS, Metric, Task
from vlpipe.foundation import config


class Winoground(Task):
    """The groups of the split: texts that share a `group_id`."""

    class Config(config.Config):
        """`by`: an attribute of the captions by whose values the scores are given, too."""

        by: str = "collapsed_tag"

    code: ClassVar[int] = 1
    roles: ClassVar[tuple[str, ...]] = ("caption",)
    columns: ClassVar[tuple[str, ...]] = ("group_id", "attributes")
    headline: ClassVar[Mapping[str, str]] = {
        "text_score": "text score",
        "image_score": "image score",
        "group_score": "group score",
        "caption_accuracy": "captions whose image scores higher",
    }
    legend: ClassVar[str] = "shares of groups, and of captions, in percent; ties are wrong"
    config: Config

    def metric(self) -> Metric:
        """The three scores, and the captions'."""
        made: Metric = METRICS.load("winoground")(self.config.by)
        return made
