"""Which captions an image scores above the same words in another order: attribution, relation, order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from vlpipe.evaluate.contracts import METRICS, Metric, Task
from vlpipe.foundation import config
from vlpipe.manifests.orders import RULES


class Aro(Task):
    """The captions of the split with their hard negatives, or with the texts that ARO's rules reorder."""

    class Config(config.Config):
        """`without`: groups that the macro average leaves out (the authors' leaves out symmetric relations, such
        as "next to"); `least`: captions that a group must have, the authors' when not given: 25 for pairs of
        attributes, 1 for relations.
        """

        without: list[str] = Field(default=[])
        least: int | None = Field(default=None, ge=1)

    code: ClassVar[int] = 1
    roles: ClassVar[tuple[str, ...]] = ("caption", "hard_negative", *(f"perturbed:{rule}" for rule in RULES))
    columns: ClassVar[tuple[str, ...]] = ("source_text_id", "attributes")
    headline: ClassVar[Mapping[str, str]] = {"accuracy": "accuracy", "accuracy_macro": "macro accuracy"}
    legend: ClassVar[str] = (
        "shares of captions that are above all of their false texts, ties are wrong; macro over relations, or "
        "pairs of attributes"
    )
    config: Config

    def metric(self) -> Metric:
        """Accuracy, by group too."""
        made: Metric = METRICS.load("aro")(self.config.without, self.config.least)
        return made

    def notes(self, numbers: Mapping[str, float]) -> list[str]:
        """Groups to be left out that are none."""
        strange = [name for name in self.config.without if numbers and f"accuracy:{name}" not in numbers]
        return [f"without: no group is called {', '.join(strange)}"] if strange else []
