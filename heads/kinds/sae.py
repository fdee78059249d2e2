"""A TopK sparse autoencoder of image embeddings, whose latents are learned (TEVI, section 3.1; appendix B.1)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from vlpipe.heads.contracts import Shapes
from vlpipe.heads.sae_head import AutoencoderConfig, AutoencoderHead
from vlpipe.heads.sae_model import SparseAutoencoder


class Sae(AutoencoderHead):
    """Decoder rows start as random unit vectors, the encoder as the decoder transposed.

    Raises `VlpipeError` when k is larger than the number of latents.
    """

    class Config(AutoencoderConfig):
        """`latents` in all, or `expansion` times the embedding's width; the paper's values for ViT-B/16."""

        epochs: int = Field(default=50, ge=0)
        expansion: int = Field(default=32, ge=1)
        latents: int | None = Field(default=None, ge=1)

    code: ClassVar[int] = 2

    def __init__(self, config: Config, shapes: Shapes) -> None:
        width = shapes.width("image")
        latents = config.latents or config.expansion * width
        super().__init__(config, SparseAutoencoder(width, latents, config.k, config.encoder_bias))
