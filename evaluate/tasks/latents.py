"""The images that activate latents the most, drawn with the latents' names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from vlpipe.evaluate.contracts import METRICS, Metric, Rows, Task
from vlpipe.foundation import config

if TYPE_CHECKING:
    from vlpipe.evaluate.answers import Evaluation


class Latents(Task):
    """All images of the split, and the manifest's prompts as names; a run of images alone will do."""

    class Config(config.Config):
        """`latents`: their numbers, the first 26 active ones when not given; `count`: images of each."""

        latents: list[int] = Field(default=[])
        count: int = Field(default=10, ge=1)

    code: ClassVar[int] = 1
    roles: ClassVar[tuple[str, ...]] = ("prompt",)
    columns: ClassVar[tuple[str, ...]] = ("text",)
    sides: ClassVar[tuple[Literal["image", "text"], ...]] = ("image",)
    scored: ClassVar[bool] = False
    headline: ClassVar[Mapping[str, str]] = {}
    legend: ClassVar[str] = "share of images that activate a latent"
    config: Config

    def metric(self) -> Metric:
        """The strongest images."""
        made: Metric = METRICS.load("latents")(self.config.latents, self.config.count)
        return made

    def notes(self, numbers: Mapping[str, float]) -> list[str]:
        """Latents that no image activates."""
        silent = [name.partition(":")[2] for name, share in numbers.items() if share == 0]
        return [f"no image activates latent {', '.join(silent)}"] if silent else []

    def titles(self, runs: Sequence[Rows]) -> dict[str, str]:
        """`NAME (LATENT)` where the runs agree on a name, else `latent LATENT`."""
        found: dict[int, set[str]] = {}
        for values in (rows.values for rows in runs):
            for latent, name in zip(values["latent"].tolist(), values["name"].tolist(), strict=True):
                found.setdefault(latent, set()).add(name)
        return {
            f"active_share:{n}": f"latent {n}" if len(names) > 1 or str(n) in names else f"{min(names)} ({n})"
            for n, names in found.items()
        }

    def draw(self, evaluations: Sequence[Evaluation], folder: Path) -> list[Path]:
        """A row of pictures a latent, a figure a run."""
        from vlpipe.evaluate.latent_images import draw

        return draw(evaluations, folder)
