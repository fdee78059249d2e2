"""The CLIP-guided sparse autoencoder: one latent a concept, whose decoder row is the concept's text embedding.

TEVI, section 3.2; the values of appendix A.1 are the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.contracts import Batch, Role, Shapes
from vlpipe.heads.moments import CONSTANT, refuse_not_finite
from vlpipe.heads.sae_head import AutoencoderConfig, AutoencoderHead
from vlpipe.heads.sae_model import SparseAutoencoder


class CgSae(AutoencoderHead):
    """Only the encoder and the biases learn, the decoder stays (Eq. 6).

    The concepts are the manifest's texts with the role `prompt` that belong to no image, a latent each. Raises
    `VlpipeError` when images and concepts have different widths, when k is larger than the number of concepts, and
    for a concept whose embedding is zero, not finite, or with `centred` the mean of all but for rounding.
    """

    class Config(AutoencoderConfig):
        """With `learn` decoder rows only start as the concepts', and `centred` takes their mean off first."""

        epochs: int = Field(default=200, ge=0)
        lr: float = Field(default=1e-2, gt=0)
        k: int = Field(default=12, ge=1)
        aux_k: int = Field(default=18, ge=0)
        encoder_bias: float = 0.1
        learn: bool = False
        centred: bool = False

    roles: ClassVar[Mapping[str, Role]] = {"image": Role("image"), "concept": Role("text", "prompt", table=True)}
    code: ClassVar[int] = 2
    config: Config

    def __init__(self, config: Config, shapes: Shapes) -> None:
        image, text = shapes.width("image"), shapes.width("concept")
        if image != text:
            raise VlpipeError(
                f"images have {image} values a row and concepts {text}: 'cg_sae' needs one space for both; name "
                "the text output of the encoder that made the images (--source concept=SPEC#OUTPUT)"
            )
        table = shapes.tables["concept"]
        refuse_not_finite(table.rows, "concepts", table.texts)
        rows = _centred(table.rows) if config.centred else table.rows
        model = SparseAutoencoder(image, len(rows), config.k, config.encoder_bias, rows)
        super().__init__(config, model)
        self.texts_of_latents = list(table.texts)
        model.W_dec.requires_grad_(config.learn)

    @property
    def names(self) -> list[str]:
        """The concepts' texts."""
        return self.texts_of_latents

    def prepare(self, training: Callable[[], Iterator[Batch]]) -> None:
        """Check the concepts, then start as every autoencoder does."""
        zero = [self.names[latent] for latent in (~self.autoencoder.W_dec.any(dim=1)).nonzero()[:, 0].tolist()]
        if zero and self.config.centred:
            raise VlpipeError(
                f"the embedding of concept '{zero[0]}' is the mean of all ({len(zero)} such): centred it has no "
                "direction; give more concepts, or do not centre them (--set centred=false)"
            )
        if zero:
            raise VlpipeError(
                f"the embedding of concept '{zero[0]}' is zero (of {len(zero)}), so it has no direction; take it "
                "out of the manifest's prompts"
            )
        super().prepare(training)


def _centred(rows: Tensor) -> Tensor:
    """Rows (n, d) less their mean; zero where no more than rounding is left of the largest."""
    found = rows - rows.mean(dim=0)
    left, largest = found.norm(dim=1, keepdim=True), rows.norm(dim=1).max()
    return torch.where(left > CONSTANT * largest, found, 0)
