"""How to train a whole model: every setting of the loop."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from vlpipe.foundation.config import Config


class LoopConfig(Config):
    """How to train. Steps are optimizer steps; the shares are of `steps`."""

    seed: int = Field(default=0, ge=0)
    steps: int = Field(default=3200, ge=1)
    batch_size: int = Field(default=128, ge=2)
    captions: int = Field(default=1, ge=1)  # K, texts of an image that a step sees
    lr: float = Field(default=1e-3, gt=0)
    text_lr: float | None = Field(default=None, ge=0)  # of the text tower; `lr` where not given
    weight_decay: float = Field(default=0.1, ge=0)  # of matrices; never of biases, norms and scales
    warmup: float = Field(default=0.05, ge=0, le=1)  # share of the steps over which the rate grows
    clip_norm: float = Field(default=1.0, gt=0)
    text_warmup_steps: int = Field(default=0, ge=0)  # first, the text tower alone: two captions of one image
    text_warmup_batch: int = Field(default=256, ge=2)
    text_frozen: float = Field(default=0.0, ge=0, le=1)  # share of the steps in which the text tower rests
    save_every: int = Field(default=200, ge=1)  # steps between validations, which are also resumed from
    threads: int = Field(default=1, ge=1)  # of one operation; bits are the same for the same number
    objective: dict[str, Any] = Field(default_factory=dict)  # the objective's own settings
    encoder: dict[str, Any] = Field(default_factory=dict)  # the encoder's own settings
