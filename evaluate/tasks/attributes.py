"""What an edited image still shows: attributes that its caption names, and those that it leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from vlpipe.evaluate.contracts import METRICS, Metric, Task
from vlpipe.foundation import config

if TYPE_CHECKING:
    from vlpipe.evaluate.answers import Evaluation


class Attributes(Task):
    """Images of the split, edited by each of their captions, against the manifest's prompts."""

    class Config(config.Config):
        """`ablate`: an attribute whose latents are also taken out alone (TEVI, Fig. 5 left)."""

        ablate: str | None = None

    code: ClassVar[int] = 2
    roles: ClassVar[tuple[str, ...]] = ("caption", "prompt")
    columns: ClassVar[tuple[str, ...]] = ("text", "attributes")
    image_columns: ClassVar[tuple[str, ...]] = ("attributes",)
    headline: ClassVar[Mapping[str, str]] = {
        "accuracy_original": "accuracy, original",
        "accuracy_rebuilt": "rebuilt",
        "accuracy_edited_in": "edited, in caption",
        "accuracy_edited_out": "edited, not in caption",
        "accuracy_value_in": "value mask, in caption",
        "accuracy_value_out": "value mask, not in caption",
        "accuracy_category_in": "category mask, in caption",
        "accuracy_category_out": "category mask, not in caption",
        "accuracy_ablated": "ablated",
        "chance_accuracy": "chance",
        "cosine_original": "cosine with the caption, original",
        "cosine_edited": "cosine with the caption, edited",
    }
    legend: ClassVar[str] = "means over attributes, each with --full"
    config: Config

    def metric(self) -> Metric:
        """Zero-shot accuracies by attribute."""
        made: Metric = METRICS.load("attributes")(self.config.ablate)
        return made

    def notes(self, numbers: Mapping[str, float]) -> list[str]:
        """Where there is a value mask: that it is handed the label."""
        if "accuracy_value_in" not in numbers:
            return []
        return [
            "a mask that reads the caption's values, as the value mask does, is handed the label by them: its "
            "in-caption accuracy says little of what the image shows; the category mask's does"
        ]

    def draw(self, evaluations: Sequence[Evaluation], folder: Path) -> list[Path]:
        """Accuracies by attribute, a figure a run (TEVI, Fig. 5)."""
        from vlpipe.evaluate.attribute_figures import draw_accuracies

        return draw_accuracies(evaluations, folder)
