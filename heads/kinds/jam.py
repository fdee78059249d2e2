"""Joint autoencoder modulator (JAM): two autoencoders whose bottlenecks meet.

"Escaping Plato's Cave: JAM for Aligning Independently Trained Vision and Language Models", section 3 and
appendix D.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

from vlpipe.heads.aligned import Aligned, AlignedConfig, Side
from vlpipe.heads.aligned_rows import mean_square
from vlpipe.heads.contracts import Shapes
from vlpipe.heads.jam_model import funnel
from vlpipe.heads.schedules import linear


class Jam(Aligned):
    """Aligned bottlenecks of one autoencoder a side.

    The loss adds `lambda(t)` times the reconstruction error of images and of texts (captions and negatives), each
    the mean per element of the standardised rows. `lambda(t)` falls linearly over the epochs.
    """

    class Config(AlignedConfig):
        """`reconstruction = false` is the ablation of Table 3: no decoders."""

        hidden: list[int] = Field(default=[512, 512, 512])
        dropout: float = Field(default=0.1, ge=0, lt=1)
        reconstruction: bool = True
        lambda_start: float = Field(default=1.0, ge=0)
        lambda_end: float = Field(default=0.1, ge=0)

    together: ClassVar[frozenset[str]] = Aligned.together | {"lambda_start", "lambda_end"}
    config: Config

    def __init__(self, config: Config, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        hidden, latent, dropout = config.hidden, config.latent, config.dropout
        self.encoders = nn.ModuleDict({s: funnel(w, hidden, latent, dropout) for s, w in self.widths.items()})
        kept = self.widths if config.reconstruction else {}
        self.decoders = nn.ModuleDict({s: funnel(latent, hidden[::-1], w, dropout) for s, w in kept.items()})

    def encode(self, side: Side, rows: Tensor) -> Tensor:
        """Bottlenecks, (n, latent)."""
        codes: Tensor = self.encoders[side](rows)
        return codes

    def numbers(self) -> dict[str, float]:
        """Eq. 17's weight, and `lambda(t)`."""
        config = self.config
        return super().numbers() | {
            "lambda": linear(config.lambda_start, config.lambda_end, self.epoch, config.epochs)
        }

    def beside(
        self, rows: Mapping[Side, Tensor], codes: Mapping[Side, Tensor], there: Mapping[Side, Tensor | None]
    ) -> dict[str, Tensor]:
        """`lambda(t)` times the reconstruction errors of both sides."""
        weight = self.weights()["lambda"]
        sides: list[Side] = ["image", "text"] if len(self.decoders) else []
        errors = {s: mean_square(self.decoders[s](codes[s]), rows[s], there[s]) for s in sides}
        return {f"reconstruction_{side}": weight * error for side, error in errors.items()}
