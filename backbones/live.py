"""What a text tower learns beside: images at rest in the cache, and finished runs that stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from vlpipe.backbones.settings import LoopConfig
from vlpipe.backbones.towers import CachedImages, Carried
from vlpipe.cache_store.fingerprint import differences
from vlpipe.extract.contracts import Encoder, Savable
from vlpipe.extract.output_names import find_output, main_output
from vlpipe.foundation.config import Config, resolve
from vlpipe.foundation.errors import StaleError, UsageError
from vlpipe.heads.contracts import HeadConfig, Shapes, Source, load_head, roles_of, roles_on
from vlpipe.heads.loop import seeded
from vlpipe.heads.opening import Opener
from vlpipe.heads.runs import Run
from vlpipe.heads.sources import parse_sources
from vlpipe.heads.upstream import Upstream

SHARED = ("seed", "batch_size", "lr", "text_lr", "weight_decay", "warmup", "clip_norm")  # of the loop and of heads


@dataclass(frozen=True)
class Places:
    """Where cached images come from (`image=SPEC#OUTPUT[::RUN]`), and the folders of features and runs."""

    sources: tuple[str, ...] = ()
    cache: Path = Path("cache")
    runs: Path = Path("runs")


class Live:
    """One text tower, the cached images and the head between them, for an objective that is `Headed`.

    `text` is the encoder as a source: SPEC, an output other than the main one, and runs whose heads its rows pass.
    Raises `UsageError` where a side, an output or a source is missing, `VlpipeError` for rows that do not fit the
    head, `StaleError` for runs that were trained on other rows.
    """

    def __init__(
        self,
        objective: Any,
        settings: Config,
        encoder: Encoder,
        text: Source,
        places: Places,
        opener: Opener,
        loop: LoopConfig,
    ) -> None:
        self.encoder, self.text, self.places, self.opener = encoder, text, places, opener
        self.output = self._output()
        self.kind, given = objective.named(settings)
        self.head = load_head(self.kind)
        told = {name: getattr(loop, name) for name in SHARED if name in self.head.Config.model_fields}
        if not told.get("text_lr"):  # a tower at rest
            told.pop("text_lr", None)
        self.config: HeadConfig = resolve(self.head.Config, given, told, {"epochs": 0})
        role = roles_of(self.head, self.config)["image"]
        sources = parse_sources(places.sources, {"image": role})
        if not sources:
            raise UsageError("images come from the cache here; name them: --source image=SPEC#OUTPUT[::RUN]")
        self.image = sources["image"]
        self.images = opener.rows(self.image, "image", stands=role.stands)
        self.through = self._through()
        self.start = self.row([])  # before training: an encoder may tell what its weights are now
        tower = encoder.tower("text", self.output)
        device = next(tower.parameters()).device
        carried = Carried(tower, self.through, encoder.outputs("text")[self.output].shape[0], device)
        self.towers: dict[str, nn.Module] = {
            "image": CachedImages(),
            "text": carried if self.through else tower,
        }
        under = {} if self.images.under is None else {"image": self.images.under.head}
        shapes = Shapes(
            {"image": self.images.shape, "text": carried.shape}, {"text": encoder.constants}, heads=under
        )
        with seeded(loop.seed):
            self.learner: Any = objective(settings, shapes).to(device)

    def _output(self) -> str:
        if "text" not in self.encoder.sides():
            raise UsageError(
                f"encoder '{self.text.output}' has no text side; name one whose text tower is to learn"
            )
        if not isinstance(self.encoder, Savable):
            raise UsageError(
                f"encoder '{self.text.output}' cannot be saved after training; take hf, open_clip or bundled"
            )
        known = self.encoder.outputs("text")
        output = find_output(self.text.output.partition("#")[2] or main_output(known), known)
        if len(known[output].shape) != 1:
            raise UsageError(f"output '{output}' has rows of shape {known[output].shape}; name one of vectors")
        return output

    def _through(self) -> list[Upstream]:
        """The runs behind the tower; each must have been trained on what comes out before it."""
        steps: list[Upstream] = []
        for run_id in self.text.through:
            run = Run.open(self.places.runs, run_id)
            names = roles_on(run.roles, "text")
            if not names:
                raise UsageError(f"run '{run_id}' reads no texts; take it out of --encoder")
            trained = run.provenance[names[0]]
            found = differences(self.row(steps), _fields(trained["fingerprint"], trained["through"]))
            if found:
                raise StaleError(
                    f"run '{run_id}' was trained on other texts than '{self.text.output}' gives: "
                    f"{'; '.join(found)}; name the encoder that it was trained on"
                )
            steps.append(Upstream(run))
        return steps

    def row(self, through: list[Upstream]) -> dict[str, str]:
        """What decides a text's row before training."""
        fingerprint = {**self.encoder.identity("text"), "output": self.output}
        return _fields(fingerprint, [step.identity for step in through])

    def decides(self) -> dict[str, Any]:
        """All that decides the trained weights beside the objective's and the loop's settings."""
        return {
            "text": self.row(self.through),
            "image": self.images.provenance,
            "head": [self.kind, self.head.code],
        }


def _fields(fingerprint: Mapping[str, str], through: list[str]) -> dict[str, str]:
    """In one level of texts; either precision at rest serves."""
    fields = {name: str(value) for name, value in fingerprint.items() if name != "dtype"}
    return fields | {"through": "::".join(through)}
