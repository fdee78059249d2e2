"""SmartCLIP's mask on cached features: what a text keeps of the raw image embedding, by TEVI's losses.

Xie et al., "SmartCLIP: Modular Vision-language Alignment with Identification Guarantees" (CVPR 2025), as TEVI's
Table 4 compares with it.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from vlpipe.heads.contracts import Batch, Shapes
from vlpipe.heads.tevi_head import MaskConfig, MaskNetwork, TextConditioned
from vlpipe.heads.tevi_losses import own_cosines
from vlpipe.heads.tevi_scores import over_norm
from vlpipe.heads.vectors import cosine_pairs, unit, working


class Smartclip(TextConditioned):
    """`v_i|j = v_i m_j`, element by element; Eq. 10 or Eq. 11 of the TEVI paper.

    Raises `VlpipeError` when images and texts have different widths.
    """

    class Config(MaskConfig):
        """As TEVI's."""

    code: ClassVar[int] = 1
    config: Config

    def __init__(self, config: Config, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        width = shapes.shared_width("smartclip")
        self.network = MaskNetwork(width, config.hidden or width, width)

    @property
    def latents(self) -> int:
        """The embedding's coordinates."""
        return self.width

    def mask(self, raw: Tensor) -> Tensor:
        """What adapted texts (m, d) keep of each coordinate: (m, d) in [0, 1]."""
        kept: Tensor = self.network(raw.to(self.logit_scale.dtype))
        return kept.to(raw.dtype)

    def batch_cosines(self, images: Tensor, raw: Tensor) -> Tensor:
        """Eq. 10 or Eq. 11, (B, B)."""
        rows, keep, texts = unit(images), self.mask(raw), unit(raw)
        return own_cosines(rows * keep, texts) if self.config.equation == 10 else _cosines(rows, keep, texts)

    def images(self, batch: Batch) -> Batch:
        """Unit rows (n, d)."""
        return Batch(batch.ids, {"image": unit(batch.x["image"])}, columns=batch.columns)

    def score(self, images: Batch, texts: Batch) -> Tensor:
        """`cos(v_i|j, t_j)`, (images, texts)."""
        return _cosines(images.x["image"], self.keep(texts), texts.x["text"])

    def score_pairs(self, images: Batch, texts: Batch) -> Tensor:
        """`cos(v_i|i, t_i)`, (rows,)."""
        return cosine_pairs(unit(self.edited(images, self.keep(texts))), texts.x["text"])

    def keep(self, texts: Batch) -> Tensor:
        """Each text's mask, (rows, d)."""
        return self.mask(texts.x["raw"])

    def edited(self, images: Batch, keep: Tensor) -> Tensor:
        """Row i's image times row i's mask, (rows, d), not of unit length."""
        return working(images.x["image"]) * keep

    def original(self, images: Batch) -> Tensor:
        """Unit embeddings as they were cached, (rows, d)."""
        return unit(images.x["image"])


def _cosines(rows: Tensor, keep: Tensor, texts: Tensor) -> Tensor:
    """Cosines of `v_i m_j` with t_j for all pairs, (n, m), from two products."""
    return over_norm(rows @ (keep * texts).T, rows.square() @ keep.square().T)
