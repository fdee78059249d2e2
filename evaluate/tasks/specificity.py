"""Whether latents tell the attribute values that they are named after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from vlpipe.evaluate.contracts import METRICS, Metric, Task
from vlpipe.foundation import config

if TYPE_CHECKING:
    from vlpipe.evaluate.answers import Evaluation


class Specificity(Task):
    """All images of the split, and the manifest's prompts as the values' names."""

    class Config(config.Config):
        """There is nothing to choose."""

    code: ClassVar[int] = 1
    roles: ClassVar[tuple[str, ...]] = ("prompt",)
    columns: ClassVar[tuple[str, ...]] = ("text", "attributes")
    image_columns: ClassVar[tuple[str, ...]] = ("attributes",)
    scored: ClassVar[bool] = False
    headline: ClassVar[Mapping[str, str]] = {
        "auc_own": "AUC, own value: mean",
        "auc_own_least": "AUC, own value: least",
        "auc_unrelated": "AUC, unrelated: mean",
        "auc_unrelated_least": "AUC, unrelated: least",
        "auc_unrelated_most": "AUC, unrelated: most",
    }

    def metric(self) -> Metric:
        """Areas under the ROC curves."""
        made: Metric = METRICS.load("specificity")()
        return made

    def draw(self, evaluations: Sequence[Evaluation], folder: Path) -> list[Path]:
        """AUC of each latent for every value, a figure an attribute (TEVI, Figs. 3, A3, A4)."""
        from vlpipe.evaluate.attribute_figures import draw_areas

        return draw_areas(evaluations, folder)
