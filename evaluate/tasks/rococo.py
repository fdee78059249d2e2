"""Retrieval beside altered captions, after RoCOCO (TEVI, Tables 3 and B3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from vlpipe.evaluate.contracts import METRICS, Inputs, Metric, Task
from vlpipe.foundation import config
from vlpipe.foundation.errors import VlpipeError

SETS = ("rand_voca", "same_concept", "diff_concept", "danger")
KINDS = [f"perturbed:{name}" for name in SETS]
SHOWN = {"i2t_recall@1": "R@1", "drop": "drop", "rsms": "RSMS"}


class Rococo(Task):
    """All images of the split against their captions, then with the altered texts of one kind at a time."""

    class Config(config.Config):
        """`kinds`: manifest roles of altered captions; those that the manifest does not have are left out."""

        kinds: list[str] = Field(default=KINDS, min_length=1)

    code: ClassVar[int] = 1
    roles: tuple[str, ...] = ("caption", *KINDS)  # type: ignore[misc]
    headline: ClassVar[Mapping[str, str]] = {"i2t_recall@1": "I→T R@1"} | {
        f"{number}:{kind}": f"{kind.removeprefix('perturbed:')}: {title}"
        for kind in (*KINDS, "hard_negative")
        for number, title in SHOWN.items()
    }
    legend: ClassVar[str] = "drop in points; RSMS: share of images whose top text is an altered one"

    def __init__(self, config: Config) -> None:
        self.config = config
        self.roles = ("caption", *config.kinds)

    def metric(self) -> Metric:
        """Recalls, drops, and RSMS."""
        made: Metric = METRICS.load("rococo")(self.config.kinds)
        return made

    def check(self, inputs: Inputs) -> None:
        """Raise `VlpipeError` where no image has a caption."""
        captions = [p for p, role in enumerate(inputs.columns["role"]) if role == "caption"]
        if not any(inputs.text_image[p] >= 0 for p in captions):
            raise VlpipeError(
                f"none of the {len(inputs.image_ids)} images has a usable caption; extract its texts"
            )
