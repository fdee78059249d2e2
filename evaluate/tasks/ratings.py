"""How far a head's scores of pairs agree with people's ratings of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from vlpipe.evaluate.contracts import METRICS, Inputs, Metric, Task
from vlpipe.evaluate.judgments import Judgments
from vlpipe.foundation import config
from vlpipe.foundation.errors import UsageError
from vlpipe.foundation.files import digest


class Ratings(Task):
    """The rated pairs of a table whose images and captions are in the split."""

    class Config(config.Config):
        """`file`: a table of ratings, as `vlpipe.evaluate.judgments` reads it; `own`: also pairs of an image and
        one of its own captions, which comparisons with published figures leave out.
        """

        file: str = ""
        own: bool = False

    code: ClassVar[int] = 1
    roles: ClassVar[tuple[str, ...]] = ("caption",)
    headline: ClassVar[Mapping[str, str]] = {
        "tau_b": "Kendall's tau-b, mean rating",
        "tau_c": "tau-c, mean rating",
        "tau_b_flat": "tau-b, each rating",
        "tau_c_flat": "tau-c, each rating",
    }
    legend: ClassVar[str] = "tau from -1 to 1; by rater with --full"

    def __init__(self, config: Config) -> None:
        if not config.file:
            raise UsageError("ratings of which pairs? give a table of them: --set file='\"FILE.tsv\"'")
        path = Path(config.file)
        self.judgments = Judgments.read(path)
        # What is in the file decides the numbers, not where it lies.
        content = digest([list(self.judgments.raters), [vars(pair) for pair in self.judgments.pairs]])
        self.config = config.model_copy(update={"file": f"{path.name}, content {content[:12]}"})
        self.told: list[str] = []

    def metric(self) -> Metric:
        """Both of Kendall's taus."""
        made: Metric = METRICS.load("ratings")(self.judgments, self.config.own)
        return made

    def check(self, inputs: Inputs) -> None:
        """Count the pairs that take no part, for `notes`; the metric checks what it reads."""
        pairs, images, texts = self.judgments.pairs, set(inputs.image_ids), set(inputs.text_ids)
        lacking = sum(pair.image_id not in images for pair in pairs), sum(p.text_id not in texts for p in pairs)
        gone = sum(pair.image_id not in images or pair.text_id not in texts for pair in pairs)
        self.told = []
        if gone:
            self.told.append(
                f"{gone} of {len(pairs)} rated pairs take no part: of {lacking[0]} the image, and of {lacking[1]} "
                "the caption is not in this split, or was not encoded"
            )
        owner = {
            text: inputs.image_ids[at]
            for text, at in zip(inputs.text_ids, inputs.text_image, strict=True)
            if at >= 0
        }
        own = sum(owner.get(pair.text_id) == pair.image_id for pair in pairs)
        if own and not self.config.own:
            self.told.append(f"{own} rated pairs are an image and its own caption; only own = true takes them in")

    def notes(self, numbers: Mapping[str, float]) -> list[str]:
        """Rated pairs that are not there, and numbers that are not defined."""
        return [*self.told, *(["no tau: all scores, or all ratings, are equal"] if not numbers else [])]
