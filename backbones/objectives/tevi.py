"""TEVI with live text: the text tower learns with the mask, the images stay cached and frozen.

"TEVI: Text-Conditioned Editing of Visual Representations via Sparse Autoencoders", section 4 and appendix B.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from vlpipe.foundation.config import Config, resolve
from vlpipe.heads.contracts import Batch, Shapes, load_head


class TeviConfig(Config):
    """Which head learns, and its settings where they are not its defaults.

    `tevi` masks an autoencoder's codes, `smartclip` the embedding, `text_adapter` nothing: fine-tuned text alone.
    """

    head: Literal["tevi", "smartclip", "text_adapter"] = "tevi"
    equation: Literal[10, 11] | None = None
    hidden: int | None = Field(default=None, ge=1)
    mask: Literal["learned", "none"] | None = None
    temperature: float | None = Field(default=None, gt=0)


class Tevi(nn.Module):
    """Eq. 10, Eq. 11 or Eq. 1 as the head of that name has it, on the tower's texts; of K texts the mean."""

    Config: ClassVar[type[Config]] = TeviConfig

    def __init__(self, config: TeviConfig, shapes: Shapes) -> None:
        super().__init__()
        kind, settings = self.named(config)
        family = load_head(kind)
        self.head: Any = family(resolve(family.Config, settings), shapes)

    @staticmethod
    def named(config: TeviConfig) -> tuple[str, dict[str, Any]]:
        """The head's name, and its settings."""
        return config.head, {"text_side": "cached", **config.model_dump(exclude_none=True, exclude={"head"})}

    def after_step(self) -> None:
        """The head's own bound on its scale."""
        self.head.after_step()

    def loss(self, images: Tensor, texts: Tensor, columns: Mapping[str, Sequence[Any]]) -> dict[str, Tensor]:
        """'loss', and 'positive', the mean cosine of an image with its text; images (B, d), texts (B, K, d)."""
        ids = [""] * len(images)
        each = [self.head.loss(Batch(ids, {"image": images, "text": text})) for text in texts.unbind(dim=1)]
        return {name: torch.stack([one[name] for one in each]).mean() for name in each[0]}
