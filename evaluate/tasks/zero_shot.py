"""Which class's prompts score highest with an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from vlpipe.evaluate.contracts import METRICS, Inputs, Metric, Task
from vlpipe.evaluate.metrics.zero_shot import Classes
from vlpipe.evaluate.tasks.retrieval import Retrieval
from vlpipe.foundation import config


class ZeroShot(Task):
    """All images of the split against the manifest's class prompts.

    Of a run on a finished autoencoder (`--source image=SPEC#OUTPUT::RUN`) it tells what reconstructions show.
    """

    class Config(config.Config):
        """`attribute`: an attribute of the images that is the truth, in place of their label ("digit" for MAD;
        "taken_for" for ImageNet-O, whose pictures have no label).
        """

        attribute: str = ""

    code: ClassVar[int] = 1
    roles: ClassVar[tuple[str, ...]] = ("prompt",)
    columns: ClassVar[tuple[str, ...]] = ("attributes",)
    image_columns: ClassVar[tuple[str, ...]] = ("label", "attributes")
    headline: ClassVar[Mapping[str, str]] = {
        "top1_accuracy": "top-1",
        "top5_accuracy": "top-5",
        "class_accuracy": "mean per class",
        "chance_accuracy": "chance",
    }
    legend: ClassVar[str] = "accuracy in percent, ties count against the image"

    def __init__(self, config: Config) -> None:
        self.config = config
        self.told: list[str] = []

    def metric(self) -> Metric:
        """Accuracies."""
        made: Metric = METRICS.load("zero_shot")(self.config.attribute)
        return made

    def check(self, inputs: Inputs) -> None:
        """Count the images that do not count, for `notes`; raises `VlpipeError` without candidates."""
        classes = Classes.of(inputs, self.config.attribute)
        gone = int(np.sum(classes.truth < 0))
        self.told = []
        if gone:
            self.told.append(
                f"{gone} of {len(classes.truth)} images do not count: their label is none of the "
                f"{len(classes.labels)} that have prompts"
            )

    def notes(self, numbers: Mapping[str, float]) -> list[str]:
        """Images that do not count, and numbers that depend on how ties count."""
        return [*self.told, *Retrieval(Retrieval.Config()).notes(numbers)]
