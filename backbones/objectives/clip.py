"""CLIP's objective: each image finds its text among the batch, each text its image."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from vlpipe.foundation.config import Config
from vlpipe.heads.vectors import unit, working

MAX_LOG_SCALE = math.log(100)


class ClipConfig(Config):
    """How sharp the softmax is at the start."""

    initial_temperature: float = Field(default=0.07, gt=0)


class Clip(nn.Module):
    """Symmetric InfoNCE (van den Oord et al., 2018) with a learned logit scale, as in CLIP (Radford et al., 2021).

    `L = (1/K) sum_k (CE(s V T_k^T) + CE(s T_k V^T)) / 2`: V and T_k are unit rows, s = exp(log_scale) is at most
    100, and every row's own column is its class.
    """

    Config: ClassVar[type[Config]] = ClipConfig

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / config.initial_temperature)))

    @torch.no_grad()
    def after_step(self) -> None:
        """Keep the scale at 100 at most; clamped here, not in the loss, where it could never come down again."""
        self.log_scale.clamp_(max=MAX_LOG_SCALE)

    def loss(self, images: Tensor, texts: Tensor, columns: Mapping[str, Sequence[Any]]) -> dict[str, Tensor]:
        """'loss' and 'logit_scale'; images (B, d), texts (B, K, d), raw embeddings."""
        scale = self.log_scale.exp().to(working(images).dtype)
        images, texts = unit(images), unit(texts)
        logits = scale * torch.einsum("bd,ckd->kbc", images, texts)  # (K, images, texts)
        own = torch.arange(len(images), device=images.device).expand(len(logits), -1)
        from_images = F.cross_entropy(logits.transpose(1, 2), own)
        from_texts = F.cross_entropy(logits, own)
        return {"loss": (from_images + from_texts) / 2, "logit_scale": scale.detach()}
