"""What TEVI, SmartCLIP and fine-tuned text alone share: text side, learned temperature, the mask's network."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from vlpipe.heads.contracts import Batch, GradientConfig, Role, Shapes
from vlpipe.heads.gradient import GradientHead
from vlpipe.heads.tevi_losses import info_nce
from vlpipe.heads.vectors import unit, working

START_SCALE, MOST_SCALE = math.log(1 / 0.07), math.log(100)


class TextConfig(GradientConfig):
    """A rate for the text side of its own, as the paper has (appendices A.1, B.1)."""

    least_images: ClassVar[int] = 2
    epochs: int = Field(default=25, ge=0)
    batch_size: int = Field(default=512, ge=2)
    lr: float = Field(default=1e-3, gt=0)
    warmup: float = Field(default=0.2, ge=0, le=1)
    text_side: Literal["cached", "adapter"] = "cached"
    text_lr: float = Field(default=1e-4, gt=0)
    temperature: float | None = Field(default=None, gt=0)  # learned when not given


class MaskConfig(TextConfig):
    """`equation` 11 also edits the negatives' embeddings by their captions, 10 does not."""

    equation: Literal[10, 11] = 11
    hidden: int | None = Field(default=None, ge=1)  # the mask network's width; not given: that of the texts


class MaskNetwork(nn.Sequential):
    """Texts (m, d) to masks (m, latents) in [0, 1]: three linear layers, ReLU between, sigmoid at the end."""

    def __init__(self, width: int, hidden: int, latents: int) -> None:
        layers = [nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
        super().__init__(*layers, nn.Linear(hidden, latents), nn.Sigmoid())


class TextConditioned(GradientHead):
    """Frozen images, and texts `cached` as they are or with an `adapter` that learns, `t + A t + a`.

    The adapter starts as nothing (A and a are zero) and learns at `text_lr`. The temperature starts at the text
    encoder's own, else at 0.07, and stays at 0.01 or above. A head adds the cosines of a batch and how it scores.
    """

    config: TextConfig
    roles: ClassVar[Mapping[str, Role]] = {"image": Role("image"), "text": Role("text")}

    def __init__(self, config: TextConfig, shapes: Shapes) -> None:
        super().__init__(config)
        self.config = config
        width = self.width = shapes.width("text")
        own = shapes.constants.get("text", {}).get("logit_scale", 0.0)
        start = math.log(own) if own > 0 else START_SCALE
        fixed = config.temperature is not None
        start = -math.log(config.temperature) if config.temperature else min(start, MOST_SCALE)
        self.logit_scale = nn.Parameter(torch.tensor(start), requires_grad=not fixed)
        self.adapter: nn.Linear | None = None
        if config.text_side == "adapter":
            self.adapter = nn.Linear(width, width)
            nn.init.zeros_(self.adapter.weight)
            nn.init.zeros_(self.adapter.bias)

    @abstractmethod
    def batch_cosines(self, images: Tensor, raw: Tensor) -> Tensor:
        """(B, B) of a training batch, from image rows and adapted texts (B, d), not of unit length."""

    def optimizer(self) -> torch.optim.AdamW:
        """AdamW over all that learns, with the adapter's rate beside the others'."""
        if self._optimizer is None:
            slow = set(self.adapter.parameters()) if self.adapter is not None else set()
            groups = [
                {
                    "params": [p for p in self.parameters() if (p in slow) == is_text and (p.ndim > 1) == decays],
                    "weight_decay": self.config.weight_decay if decays else 0.0,
                    "share": self.config.text_lr / self.config.lr if is_text else 1.0,
                }
                for is_text in (False, True)
                for decays in (True, False)
            ]
            self._optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=self.config.lr)
        return self._optimizer

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """InfoNCE of the batch's cosines; 'positive' is the mean cosine of an image with its own caption."""
        cosines = self.batch_cosines(batch.x["image"], self.adapted(batch.x["text"]))
        return {
            "loss": info_nce(cosines, self.logit_scale.exp()),
            "positive": cosines.detach().diagonal().mean(),
        }

    def after_step(self) -> None:
        """The scale stays at 100 or below."""
        if self.logit_scale.requires_grad:
            with torch.no_grad():
                self.logit_scale.clamp_(max=MOST_SCALE)

    def adapted(self, texts: Tensor) -> Tensor:
        """Raw texts (m, d) as the head reads them, (m, d), in their own precision."""
        raw = working(texts)
        return raw if self.adapter is None else raw + _linear(self.adapter, raw)

    def texts(self, batch: Batch) -> Batch:
        """Unit texts (m, d), and before that under "raw" (m, d), which masks are read from."""
        with torch.no_grad():
            raw = self.adapted(batch.x["text"])
        return Batch(batch.ids, {"text": unit(raw), "raw": raw}, columns=batch.columns)

    def temperature(self, texts: Batch) -> Tensor:
        """One over the learned scale for every text, (rows,)."""
        rows = texts.x["text"]
        return torch.exp(-self.logit_scale.detach()).to(rows.dtype).expand(len(rows))

    def report(self) -> dict[str, float]:
        """The temperature in use."""
        return {"temperature": float(torch.exp(-self.logit_scale.detach()))}


def _linear(layer: nn.Linear, rows: Tensor) -> Tensor:
    """A layer in the rows' precision."""
    return nn.functional.linear(rows, layer.weight.to(rows.dtype), layer.bias.to(rows.dtype))
