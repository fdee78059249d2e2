"""The frozen encoders as they are: the baseline of every table, as an ordinary run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.contracts import Batch, HeadConfig, Role, Shapes
from vlpipe.heads.vectors import cosine_pairs, cosines, unit, working


class Identity(nn.Module):
    """Cosine of the cached rows; nothing is learned.

    Raises `VlpipeError` when images and texts have different widths.
    """

    class Config(HeadConfig):
        """`temperature` replaces the encoder's own logit scale."""

        epochs: int = Field(default=0, ge=0, le=0)
        temperature: float | None = Field(default=None, gt=0)

    roles: ClassVar[Mapping[str, Role]] = {"image": Role("image"), "text": Role("text")}
    code: ClassVar[int] = 1

    def __init__(self, config: Config, shapes: Shapes) -> None:
        super().__init__()
        image, text = shapes.width("image"), shapes.width("text")
        if image != text:
            raise VlpipeError(
                f"images have {image} values a row and texts {text}: 'identity' needs equal widths; "
                "train 'ridge' to map one to the other"
            )
        scale = shapes.constants.get("text", {}).get("logit_scale", 0.0)
        own = 1 / scale if scale > 0 else math.nan
        self.register_buffer("divisor", torch.tensor(config.temperature or own, dtype=torch.float64))

    def update(self, batch: Batch) -> dict[str, float]:
        """Nothing is learned."""
        return {}

    def finish(self) -> None:
        """Nothing is left to do."""

    def images(self, batch: Batch) -> Batch:
        """Unit rows (n, d)."""
        return Batch(batch.ids, {"image": unit(batch.x["image"])}, columns=batch.columns)

    def texts(self, batch: Batch) -> Batch:
        """Unit rows (n, d)."""
        return Batch(batch.ids, {"text": unit(batch.x["text"])}, columns=batch.columns)

    def score(self, images: Batch, texts: Batch) -> Tensor:
        """Cosines, (images, texts)."""
        return cosines(images.x["image"], texts.x["text"])

    def score_pairs(self, images: Batch, texts: Batch) -> Tensor:
        """Cosines, (rows,)."""
        return cosine_pairs(images.x["image"], texts.x["text"])

    def temperature(self, texts: Batch) -> Tensor:
        """One over the encoder's logit scale for every text, (rows,) (Eq. 53 of the TPC paper).

        Raises `VlpipeError` when the encoder has none and there is no setting `temperature`.
        """
        divisor = self.get_buffer("divisor")
        if not torch.isfinite(divisor):
            raise VlpipeError(
                "the text encoder has no logit scale, so its scores have no temperature; "
                "train 'identity' with --set temperature=0.07, say"
            )
        rows = texts.x["text"]
        return divisor.to(working(rows).dtype).expand(len(rows))
