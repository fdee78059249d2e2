"""Which caption an image scores highest, with examples of runs that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from vlpipe.evaluate.contracts import METRICS, Inputs, Metric, Task
from vlpipe.evaluate.tasks.retrieval import Retrieval
from vlpipe.foundation import config

if TYPE_CHECKING:
    from vlpipe.evaluate.answers import Evaluation


class TopCaptions(Task):
    """All images of the split against all their captions; of several runs, images that they disagree about."""

    class Config(config.Config):
        """`examples`: pictures of each kind in a figure; `seed`: of their choice."""

        examples: int = Field(default=4, ge=1)
        seed: int = Field(default=0, ge=0)

    code: ClassVar[int] = 1
    roles: ClassVar[tuple[str, ...]] = ("caption",)
    columns: ClassVar[tuple[str, ...]] = ("text",)
    image_columns: ClassVar[tuple[str, ...]] = ("attributes",)
    headline: ClassVar[Mapping[str, str]] = {
        "i2t_recall@1": "top caption is the image's own",
        "true_recall@1": "top caption is true",
    }
    legend: ClassVar[str] = "shares of images in percent, ties count against them; true by the images' attributes"
    config: Config

    def metric(self) -> Metric:
        """Recall, and truth."""
        made: Metric = METRICS.load("top_captions")()
        return made

    def check(self, inputs: Inputs) -> None:
        """Raise `VlpipeError` as retrieval does, without images or captions."""
        Retrieval(Retrieval.Config()).check(inputs)

    def draw(self, evaluations: Sequence[Evaluation], folder: Path) -> list[Path]:
        """The first run against each other one, a figure each (TEVI, Fig. B3)."""
        from vlpipe.evaluate.examples import draw

        return draw(evaluations, folder, self.config.examples, self.config.seed)
