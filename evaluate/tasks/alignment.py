"""Whether images and texts are laid out alike, and whether that tells a match from a near miss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from vlpipe.evaluate.contracts import METRICS, Inputs, Metric, Task
from vlpipe.evaluate.kernels import KernelName
from vlpipe.evaluate.metrics.alignment import CONDITIONS, SHUFFLED, STATISTICS, Settings
from vlpipe.evaluate.pairs import SOURCE, Per
from vlpipe.foundation import config
from vlpipe.foundation.errors import VlpipeError

TITLES = {
    "cca_linear": "CCA, linear PCA",
    "cca_rbf": "CCA, RBF PCA",
    "svcca": "SVCCA, 99 %",
    "svcca_fixed10": "SVCCA, fixed10",
    "cka_biased": "CKA, biased",
    "cka_debiased": "CKA, debiased",
    "cknna_paper": "CKNNA, paper",
    "cknna_unbiased": "CKNNA, unbiased",
}
SHOWN = {"match": "match", "hard": "hard non-match", "easy_image": "easy, image", "easy_text": "easy, text"}


class Alignment(Task):
    """All captions of the split with their images, and with hard negatives and unrelated rows where there are any.

    Reads what a run makes of its rows; `vlpipe.evaluate.frozen:Frozen` makes nothing of them.
    """

    class Config(config.Config):
        """The paper's settings. `per`: one pair an image, or (its tables) one a caption; `where`: attributes that
        texts must have, for example `{subset = ["swap_att", "swap_obj"]}`; `dims`: principal components that CKA
        and CKNNA look at, 0 for the rows as they are.
        """

        per: Per = "image"
        where: dict[str, list[str]] = Field(default_factory=dict)
        components: int = Field(default=50, ge=1)
        dims: int = Field(default=10, ge=0)
        neighbours: int = Field(default=10, ge=1)
        kernel: KernelName = "linear"
        permutations: int = Field(default=10, ge=1)
        seed: int = Field(default=0, ge=0)

    code: ClassVar[int] = 1
    roles: ClassVar[tuple[str, ...]] = ("caption", "hard_negative")
    columns: ClassVar[tuple[str, ...]] = (SOURCE, "attributes")
    scored: ClassVar[bool] = False
    headline: ClassVar[Mapping[str, str]] = {
        f"{condition}_{name}{suffix}": f"{TITLES[name]}: {SHOWN[condition]}{', shuffled' if suffix else ''}"
        for name in STATISTICS
        for condition, suffix in (*((condition, "") for condition in CONDITIONS), ("match", SHUFFLED))
    }
    legend: ClassVar[str] = "shuffled: mean over permutations of the texts, what as many unrelated rows give"
    config: Config

    def metric(self) -> Metric:
        """All statistics."""
        own = self.config
        settings = Settings(own.components, own.dims, own.neighbours, own.kernel)
        made: Metric = METRICS.load("alignment")(settings, own.per, own.where, own.permutations, own.seed)
        return made

    def check(self, inputs: Inputs) -> None:
        """Raise `VlpipeError` for an attribute that no text has, and without a caption of any image."""
        known = {name: set[str]() for name in self.config.where}
        for one in inputs.columns["attributes"]:
            for name in known.keys() & one.keys():
                known[name].add(one[name])
        for name, wanted in self.config.where.items():
            missing = set(wanted) - known[name]
            if missing:
                raise VlpipeError(
                    f"where: no text has the attribute {name} = {sorted(missing)[0]!r}; known: "
                    f"{', '.join(sorted(known[name])) or 'none'}"
                )
        captions = [role == "caption" and i >= 0 for role, i in self._roles(inputs)]
        if not any(captions):
            raise VlpipeError(
                "alignment of 0 pairs: expected images with usable captions in this split; see `vlpipe cache show`"
            )

    @staticmethod
    def _roles(inputs: Inputs) -> list[tuple[str, int]]:
        return list(zip(inputs.columns["role"], inputs.text_image.tolist(), strict=True))

    def notes(self, numbers: Mapping[str, float]) -> list[str]:
        """Conditions that had no rows, and statistics that were not defined."""
        there = [c for c in CONDITIONS if any(name.startswith(c) for name in numbers)]
        notes = []
        if "hard" not in there:
            notes.append("no caption has a hard negative: no hard non-matches (vlpipe manifest negatives)")
        if not {"easy_image", "easy_text"} & set(there):
            notes.append("no unrelated rows: no easy non-matches (vlpipe manifest build unrelated; --beside DIR)")
        lacking = [f"{c}_{s}" for c in there for s in STATISTICS if f"{c}_{s}" not in numbers]
        if lacking:
            notes.append(f"not defined (column 'why' of the rows says why): {', '.join(lacking)}")
        return notes
