"""What JAM and the projections share: objectives, schedules, a learned temperature, early stopping."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.aligned_rows import negatives, packed, places, unpacked
from vlpipe.heads.contracts import Batch, GradientConfig, Role, Shapes
from vlpipe.heads.counts import size_of
from vlpipe.heads.dropout import Dropout
from vlpipe.heads.early_stopping import Best
from vlpipe.heads.gradient import GradientHead
from vlpipe.heads.jam_losses import OBJECTIVES, Terms, similarities
from vlpipe.heads.ranks import ranks
from vlpipe.heads.schedules import linear, stepped
from vlpipe.heads.standardise import By, Standardise
from vlpipe.heads.vectors import cosine_pairs, cosines, unit, working

START_SCALE = math.log(1 / 0.07)  # appendix D.2
MOST_SCALE = math.log(100)
Side = Literal["image", "text"]


class AlignedConfig(GradientConfig):
    """The paper's settings. It gives no learning rate and no weight decay: these were tried on Flickr8k, and
    `benchmarks/RESULTS.md` says which others were.
    """

    least_images: ClassVar[int] = 2
    epochs: int = Field(default=100, ge=0)
    batch_size: int = Field(default=32, ge=2)
    lr: float = Field(default=3e-4, gt=0)
    weight_decay: float = Field(default=1.0, ge=0)
    warmup: float = Field(default=0.0, ge=0, le=1)
    objective: Literal["con", "negcon", "spread"] = "spread"
    negatives: int = Field(default=1, ge=1)  # of a caption, at most, in one step
    denominator: Literal["infonce", "printed"] = "infonce"
    factor: Literal["mean", "printed"] = "mean"  # of Eq. 2
    schedule: Literal["fixed", "linear", "grid"] = "fixed"  # of alpha: `alpha`, or over the epochs the next three
    alpha: float = Field(default=0.5, ge=0, le=1)
    alpha_start: float = Field(default=0.0, ge=0, le=1)
    alpha_end: float = Field(default=1.0, ge=0, le=1)
    alpha_grid: list[float] = Field(default=[0.0, 0.25, 0.5, 0.75, 1.0], min_length=1)
    temperature: float | None = Field(default=None, gt=0)  # learned when not given
    latent: int = Field(default=256, ge=1)
    image_scaling: By = "column"
    text_scaling: By = "column"
    check_every: int = Field(default=5, ge=1)  # epochs
    patience: int = Field(default=5, ge=1)  # checks

    @model_validator(mode="after")
    def _grid(self) -> Self:
        if any(not 0 <= alpha <= 1 for alpha in self.alpha_grid):
            raise ValueError("alpha_grid: expected numbers from 0 to 1")
        return self


class Aligned(GradientHead):
    """One network a side into a common space, trained so that images and their captions meet there.

    A step reads one seeded caption an image and up to `negatives` of that caption's hard negatives; `con` does not
    need any. Every `check_every` epochs and after the last one, the share of validation images whose best text,
    among all validation captions and hard negatives, is one of theirs decides which weights are kept; without
    validation images the last ones are. Raises `VlpipeError` where negatives have another width than captions.
    """

    config: AlignedConfig
    roles: ClassVar[Mapping[str, Role]] = {
        "image": Role("image"),
        "text": Role("text"),
        "negative": Role("text", kind="hard_negative", partial=True, of="text"),
    }
    code: ClassVar[int] = 2
    fused: ClassVar[bool] = True
    together: ClassVar[frozenset[str]] = frozenset(
        ["alpha", "alpha_start", "alpha_end", "alpha_grid", "schedule", "check_every", "patience"]
    )

    @classmethod
    def roles_for(cls, config: AlignedConfig) -> Mapping[str, Role]:
        """As many negatives as the config says; for `con` there may be none."""
        needed = config.objective != "con"
        negative = Role("text", "hard_negative", config.negatives, optional=not needed, partial=needed, of="text")
        return {"image": Role("image"), "text": Role("text"), "negative": negative}

    def __init__(self, config: AlignedConfig, shapes: Shapes) -> None:
        super().__init__(config)
        self.config = config
        self.widths: dict[Side, int] = {"image": shapes.width("image"), "text": shapes.width("text")}
        negative = shapes.width("negative")
        if negative != self.widths["text"]:
            raise VlpipeError(
                f"role 'negative' has {negative} values a row and 'text' {self.widths['text']}: expected the same "
                "encoder and output for both (leave --source negative=... out)"
            )
        by = {"image": config.image_scaling, "text": config.text_scaling}
        self.scalers = nn.ModuleDict({side: Standardise(width, by[side]) for side, width in self.widths.items()})
        fixed = config.temperature is not None
        start = torch.tensor(-math.log(config.temperature) if config.temperature else START_SCALE)
        self.logit_scale = nn.Parameter(start, requires_grad=not fixed)
        self.best = Best()

    @abstractmethod
    def encode(self, side: Side, rows: Tensor) -> Tensor:
        """Scaled rows (n, width) into the common space, (n, latent)."""

    def beside(
        self, rows: Mapping[Side, Tensor], codes: Mapping[Side, Tensor], there: Mapping[Side, Tensor | None]
    ) -> dict[str, Tensor]:
        """More terms, weighted, of one step's scaled rows and what `encode` made of them; none by default.

        `there` says which rows count, (n,), None for all.
        """
        return {}

    def prepare(self, training: Callable[[], Iterator[Batch]]) -> None:
        """Means and spreads of the images, and of captions and negatives together."""
        names: dict[Side, tuple[str, ...]] = {"image": ("image",), "text": ("text", "negative")}
        for side, roles in names.items():
            scaler = self.scalers[side]
            scaler.fit(batch.x[n][batch.mask[n]] for batch in training() for n in roles)  # type: ignore[operator]

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The objective, and what a head adds beside it; `x["negative"]` is (B, K, d), or (B, d) for K = 1."""
        size, every = len(batch.x["image"]), self.given is not None
        wrong, there = negatives(batch)
        texts = torch.cat([batch.x["text"], packed(wrong, there, every=every)])
        rows: dict[Side, Tensor] = {
            "image": self._scaled("image", batch.x["image"]),
            "text": self._scaled("text", texts),
        }
        codes: dict[Side, Tensor] = {side: self.encode(side, given) for side, given in rows.items()}
        v, t = unit(codes["image"]), unit(codes["text"])
        n = unpacked(t[size:], there, every=every)
        terms = self.terms()
        objective = OBJECTIVES[self.config.objective]
        found = objective(similarities(v, t[:size], n, there, self.logit_scale.exp()), terms)
        more = self.beside(rows, codes, {"image": None, "text": places(batch) if every else None})
        total = found + sum(more.values())
        return {"loss": total, "align": found.detach(), **{name: value.detach() for name, value in more.items()}}

    def terms(self) -> Terms:
        """The objective's options at this step."""
        config = self.config
        return Terms(config.denominator == "printed", config.factor == "printed", self.weights()["alpha"])

    def numbers(self) -> dict[str, float]:
        """Eq. 17's weight."""
        return {"alpha": self.alpha(self.epoch)}

    def noise(self, batch: Batch, generator: torch.Generator) -> list[Tensor]:
        """Dropout's draws for one step, by layer in the order of use: as `loss` makes them, in every place."""
        texts = places(batch)
        size = {"image": len(batch.ids), "text": len(texts)}
        rows = {"image": torch.arange(size["image"], device=texts.device), "text": texts.nonzero()[:, 0]}
        found = []
        for name, layer in self.named_modules():
            if isinstance(layer, Dropout) and layer.p:
                side = name.split(".")[1]  # encoders.image.3
                whole = self.logit_scale.new_zeros(size[side], layer.width)
                whole[rows[side]] = layer.drawn(len(rows[side]), whole, generator)
                found.append(whole)
        return found

    def alpha(self, epoch: int) -> float:
        """Section 4.2: Eq. 17's weight in a 0-based epoch."""
        config = self.config
        if config.schedule == "linear":
            return linear(config.alpha_start, config.alpha_end, epoch, config.epochs)
        return stepped(config.alpha_grid, epoch, config.epochs) if config.schedule == "grid" else config.alpha

    @property
    def epoch(self) -> int:
        """The 0-based epoch of this step; 0 where the training's length is not known."""
        return self.steps * self.config.epochs // self.total_steps if self.total_steps else 0

    def after_step(self) -> None:
        """The scale stays at 100 or below."""
        if self.config.temperature is None:
            with torch.no_grad():
                self.logit_scale.clamp_(max=MOST_SCALE)

    def after_epoch(self, epoch: int, validation: Callable[[], Batch]) -> bool:
        """Check, keep the best weights, and stop once `patience` checks brought nothing better."""
        if epoch % self.config.check_every and epoch != self.config.epochs:
            return True
        batch = validation()
        if len(batch.ids):
            self.best.see(self, self.recall(batch), epoch)
        return self.best.waited < self.config.patience

    def recall(self, batch: Batch) -> float:
        """Share of images whose best text is a caption of theirs, among the batch's captions and negatives."""
        with torch.no_grad():
            v = self.images(batch).x["image"].cpu()
            own = batch.mask["text"].nonzero()[:, 0].cpu().numpy()
            rows = torch.cat([batch.x[name][batch.mask[name]] for name in ("text", "negative")])
            t = self.texts(Batch([], {"text": rows})).x["text"].cpu()
        owner = np.concatenate([own, np.full(len(t) - len(own), -1)]).astype(np.int64)
        return ranks(lambda i, j: cosines(v[i], t[j]), owner, len(v)).i2t.recall(1)

    def finish(self) -> None:
        """Take up the best weights."""
        self.best.take_up(self)

    def report(self) -> dict[str, float]:
        """The check that decided and its alpha, the temperature, parameters and FLOPs."""
        found = {"temperature": float(torch.exp(-self.logit_scale.detach())), **size_of(self)}
        if self.best.epoch:
            found |= {"validation_i2t_recall@1": self.best.value, "best_epoch": float(self.best.epoch)}
            found |= {"alpha": self.alpha(self.best.epoch - 1)} if self.config.objective == "spread" else {}
        return found

    def training_state(self) -> dict[str, Tensor]:
        """AdamW's moments, and the best weights so far."""
        return super().training_state() | self.best.state()

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `training_state` gave."""
        super().load_training_state(state)
        self.best = Best.of(state)

    def images(self, batch: Batch) -> Batch:
        """Unit codes (n, latent)."""
        return Batch(batch.ids, {"image": self._codes("image", batch.x["image"])}, columns=batch.columns)

    def texts(self, batch: Batch) -> Batch:
        """Unit codes (n, latent)."""
        return Batch(batch.ids, {"text": self._codes("text", batch.x["text"])}, columns=batch.columns)

    def score(self, images: Batch, texts: Batch) -> Tensor:
        """Cosines, (images, texts)."""
        return cosines(images.x["image"], texts.x["text"])

    def score_pairs(self, images: Batch, texts: Batch) -> Tensor:
        """Cosines, (rows,)."""
        return cosine_pairs(images.x["image"], texts.x["text"])

    def temperature(self, texts: Batch) -> Tensor:
        """One over the learned scale for every text, (rows,)."""
        rows = texts.x["text"]
        return torch.exp(-self.logit_scale.detach()).to(rows.dtype).expand(len(rows))

    def _scaled(self, side: Side, rows: Tensor) -> Tensor:
        """Standardised rows in the precision of the weights."""
        scaled: Tensor = self.scalers[side](working(rows))
        return scaled.to(self.logit_scale.dtype)

    def _codes(self, side: Side, rows: Tensor) -> Tensor:
        """Unit codes in the precision of the rows."""
        return unit(self.encode(side, self._scaled(side, rows)).to(working(rows).dtype))
