"""Which captions an image scores above their hard negatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from vlpipe.evaluate.contracts import METRICS, Metric, Task
from vlpipe.foundation import config

GROUPS = {"": "micro", "_macro": "macro", ":replace": "Replace", ":add": "Add", ":swap": "Swap"}


class Compositionality(Task):
    """The hard negatives of the split, each against the caption that it was made from.

    For SugarCrepe's seven files, or the rules of `vlpipe manifest negatives`.
    """

    class Config(config.Config):
        """`by`: attributes of a negative that say of which kind it is, the first that it has counts; `seed`: of
        the captions of other images in the 5-way choice.
        """

        by: list[str] = Field(default=["subset", "rule"])
        seed: int = Field(default=0, ge=0)

    code: ClassVar[int] = 2
    roles: ClassVar[tuple[str, ...]] = ("caption", "hard_negative")
    columns: ClassVar[tuple[str, ...]] = ("text", "source_text_id", "attributes")
    headline: ClassVar[Mapping[str, str]] = {
        f"{way}_recall@1{end}": f"{title}: {group}"
        for way, title in (("binary", "binary R@1"), ("choice5", "5-way R@1"))
        for end, group in GROUPS.items()
    }
    legend: ClassVar[str] = (
        "the caption against its own hard negative (binary) and against that and three captions of other images "
        "(5-way), ties are wrong; micro over all negatives, macro over their families"
    )
    config: Config

    def metric(self) -> Metric:
        """Both recalls, by kind of negative."""
        made: Metric = METRICS.load("compositionality")(self.config.by, self.config.seed)
        return made

    def notes(self, numbers: Mapping[str, float]) -> list[str]:
        """Numbers that these rows do not define."""
        if not numbers:
            return []
        notes = []
        if "choice5_recall@1" not in numbers:
            notes.append("no 5-way choice: it takes captions of four images or more that differ")
        if "binary_recall@1_macro" not in numbers:
            notes.append(f"no kinds of negatives: none has an attribute {' or '.join(self.config.by)}")
        return notes
