"""Projections into one space with JAM's objectives: the baselines of its Table 3."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from vlpipe.heads.aligned import Aligned, AlignedConfig, Side
from vlpipe.heads.contracts import Shapes
from vlpipe.heads.dropout import Dropout


class Projection(Aligned):
    """One linear layer a side, or two with a GELU between; nothing is reconstructed."""

    class Config(AlignedConfig):
        """`hidden` is the width between the two layers of `nonlinear`; `dropout` is of the scaled rows."""

        layers: Literal["linear", "nonlinear"] = "linear"
        hidden: int = Field(default=512, ge=1)
        dropout: float = Field(default=0.0, ge=0, lt=1)

    config: Config

    def __init__(self, config: Config, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        self.projections = nn.ModuleDict({side: self._projection(width) for side, width in self.widths.items()})

    def _projection(self, width: int) -> nn.Sequential:
        config = self.config
        if config.layers == "linear":
            return nn.Sequential(Dropout(config.dropout, width), nn.Linear(width, config.latent))
        between = nn.Linear(width, config.hidden), nn.GELU(), nn.Linear(config.hidden, config.latent)
        return nn.Sequential(Dropout(config.dropout, width), *between)

    def encode(self, side: Side, rows: Tensor) -> Tensor:
        """Projected rows, (n, latent)."""
        codes: Tensor = self.projections[side](rows)
        return codes
