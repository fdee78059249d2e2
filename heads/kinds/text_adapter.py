"""Fine-tuned text alone: the baseline of TEVI's Tables B1 and B2, on cached features."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from vlpipe.heads.contracts import Batch, Shapes
from vlpipe.heads.tevi_head import TextConditioned, TextConfig
from vlpipe.heads.vectors import cosine_pairs, cosines, unit


class TextAdapter(TextConditioned):
    """Frozen images, and texts with a residual linear layer that learns by Eq. 1.

    Raises `VlpipeError` when images and texts have different widths.
    """

    class Config(TextConfig):
        """Without an adapter only the temperature would learn."""

        text_side: Literal["cached", "adapter"] = "adapter"

    code: ClassVar[int] = 1

    def __init__(self, config: Config, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        shapes.shared_width("text_adapter")

    def batch_cosines(self, images: Tensor, raw: Tensor) -> Tensor:
        """Cosines of all pairs (B, B)."""
        return cosines(unit(images), unit(raw))

    def images(self, batch: Batch) -> Batch:
        """Unit rows (n, d)."""
        return Batch(batch.ids, {"image": unit(batch.x["image"])}, columns=batch.columns)

    def score(self, images: Batch, texts: Batch) -> Tensor:
        """Cosines, (images, texts)."""
        return cosines(images.x["image"], texts.x["text"])

    def score_pairs(self, images: Batch, texts: Batch) -> Tensor:
        """Cosines, (rows,)."""
        return cosine_pairs(images.x["image"], texts.x["text"])
