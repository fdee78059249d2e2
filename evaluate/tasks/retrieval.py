"""Which captions find their image, and which images find a caption of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from vlpipe.evaluate.contracts import METRICS, Inputs, Metric, Task
from vlpipe.foundation import config
from vlpipe.foundation.errors import VlpipeError

if TYPE_CHECKING:
    from vlpipe.evaluate.answers import Evaluation


class Retrieval(Task):
    """All usable images of the split against all their captions, and those that belong to no image."""

    class Config(config.Config):
        """`ks`: the K of Recall@K."""

        ks: list[int] = Field(default=[1, 5, 10], min_length=1)

    code: ClassVar[int] = 1
    roles: ClassVar[tuple[str, ...]] = ("caption",)
    headline: ClassVar[Mapping[str, str]] = {
        "i2t_recall@1": "I→T R@1",
        "i2t_recall@5": "I→T R@5",
        "i2t_recall@10": "I→T R@10",
        "i2t_median_rank": "I→T median rank",
        "t2i_recall@1": "T→I R@1",
        "t2i_recall@5": "T→I R@5",
        "t2i_recall@10": "T→I R@10",
        "t2i_median_rank": "T→I median rank",
        "mean_caption_recall@1": "mean-caption R@1",
        "worst_caption_recall@1": "worst-caption R@1",
        "rank_std": "RankStd",
        "worst_gap": "WorstGap",
    }
    legend: ClassVar[str] = "recall in percent, ranks from 1, ties count against the query"
    config: Config

    def metric(self) -> Metric:
        """Recalls, median ranks and caption sensitivity."""
        made: Metric = METRICS.load("retrieval")(self.config.ks)
        return made

    def check(self, inputs: Inputs) -> None:
        """Raise `VlpipeError` without images, or without a caption of any of them."""
        if not len(inputs.image_ids):
            raise VlpipeError(
                "retrieval among 0 images: expected a split with usable images; see `vlpipe cache show`"
            )
        if not (inputs.text_image >= 0).any():
            raise VlpipeError(
                f"none of the {len(inputs.image_ids)} images has a usable text with the role "
                f"{' or '.join(self.roles)}; give the manifest captions, or extract its texts"
            )

    def notes(self, numbers: Mapping[str, float]) -> list[str]:
        """One warning with both ends of all numbers that depend on how ties count."""
        ends = {name: (value, numbers.get(name + "_optimistic", value)) for name, value in numbers.items()}
        changed = [f"{name} {low:.4g} to {high:.4g}" for name, (low, high) in ends.items() if low != high]
        if not changed:
            return []
        return [
            f"ties, which count against the query here, would change if they counted for it: {', '.join(changed)}"
        ]

    def draw(self, evaluations: Sequence[Evaluation], folder: Path) -> list[Path]:
        """Recalls with intervals, and the distribution of caption sensitivity."""
        from vlpipe.evaluate.figures import draw

        return draw(evaluations, folder)
