"""What the sparse autoencoder heads share: losses, dead latents, start, report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads import sae_losses as losses
from vlpipe.heads.contracts import Batch, GradientConfig, Role
from vlpipe.heads.gradient import GradientHead
from vlpipe.heads.moments import refuse_not_finite
from vlpipe.heads.sae_model import SparseAutoencoder
from vlpipe.heads.sae_sparse import Pattern
from vlpipe.heads.vectors import unit, working

START_ROWS = 16_384  # that the bias and the spread are taken of
NO_SPREAD = 1e-9  # of the mean square: what rounding leaves of rows that are equal


class AutoencoderConfig(GradientConfig):
    """`k` latents are active; up to `aux_k` dead ones learn from what is left, with weight `aux_weight`.

    A latent is dead when `dead_after` samples went by without it, as many as there are training images when not
    given. `start` is where the bias starts among the training rows. With `unit_norm` embeddings are normalised on
    reading.
    """

    weight_decay: float = Field(default=0.0, ge=0)
    k: int = Field(default=128, ge=1)
    aux_k: int = Field(default=256, ge=0)
    aux_weight: float = Field(default=1 / 32, ge=0)
    dead_after: int | None = Field(default=None, ge=1)
    start: Literal["geometric_median", "mean", "zero"] = "geometric_median"
    encoder_bias: float = 0.0
    unit_norm: bool = False


class AutoencoderHead(GradientHead):
    """Trains a `SparseAutoencoder` on image embeddings (n, d).

    `images` gives reconstructions, `codes` the active latents and their values. `idle[latent]` is the number of
    samples since a latent fired, `epoch_images` how many images an epoch shows, 0 before `prepare`.
    """

    roles: ClassVar[Mapping[str, Role]] = {"image": Role("image")}
    fused: ClassVar[bool] = True
    config: AutoencoderConfig

    def __init__(self, config: AutoencoderConfig, autoencoder: SparseAutoencoder) -> None:
        super().__init__(config)
        self.config = config
        self.autoencoder = autoencoder
        self.register_buffer("idle", torch.zeros(autoencoder.latents, dtype=torch.int64))
        self.register_buffer("variance", torch.tensor(1.0, dtype=torch.float64))
        self.register_buffer("epoch_images", torch.tensor(0))
        self.held_out: dict[str, Tensor] = {}
        self._fired: tuple[int, Tensor] = 0, torch.zeros(autoencoder.latents, dtype=torch.bool)

    @property
    def names(self) -> list[str]:
        """What each latent is called."""
        return [str(latent) for latent in range(self.autoencoder.latents)]

    def prepare(self, training: Callable[[], Iterator[Batch]]) -> None:
        """Put the bias among the training rows, take their spread, which errors are measured by, and count them.

        Rows without any spread count as they are. Raises `VlpipeError` that names an image with NaN or infinity.
        """
        parts: list[Tensor] = []
        images = 0
        for batch in training():
            refuse_not_finite(batch.x["image"], "training images", batch.ids)
            if images < START_ROWS:
                parts.append(self._read(batch))
            images += len(batch.ids)
        if not images:
            raise VlpipeError("no training images to start the autoencoder among; expected one or more")
        self.get_buffer("epoch_images").fill_(images)
        rows = torch.cat(parts)
        spread = losses.spread(rows.double())
        if spread > 0:
            self.get_buffer("variance").copy_(spread)
        if self.config.start != "zero":
            found = losses.geometric_median(rows) if self.config.start == "geometric_median" else rows.mean(dim=0)
            with torch.no_grad():
                self.autoencoder.b_pre.copy_(found)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Eq. 2 over the training rows' spread, and `aux_weight` times the auxiliary loss of dead latents."""
        x = self._read(batch)
        values, pattern = self.autoencoder.codes(x)
        x_hat = self.autoencoder.reconstructed(values, pattern)
        unexplained = losses.reconstruction(x, x_hat, self.get_buffer("variance").to(x.dtype))
        dead = self.dead()
        revival = self._revival(x, x - x_hat, dead)
        self._mark(values, pattern)
        return {
            "loss": unexplained + self.config.aux_weight * revival,
            "unexplained": unexplained,
            "auxiliary": revival,
            "l0": (values > 0).sum(dim=1).to(x.dtype).mean(),
            "dead": torch.tensor(float(len(dead))),
        }

    def after_step(self) -> None:
        """Decoder rows to unit norm, and the count of samples since each latent fired."""
        if self.autoencoder.W_dec.requires_grad:
            self.autoencoder.normalise_decoder()
        rows, fired = self._fired
        self.get_buffer("idle").add_(rows).masked_fill_(fired, 0)

    def dead(self) -> Tensor:
        """Latents (m,) that have not fired for `dead_after` samples; none while an epoch's number is not known."""
        after = self.config.dead_after or int(self.get_buffer("epoch_images"))
        return (self.get_buffer("idle") >= (after or torch.inf)).nonzero()[:, 0]

    def validate(self, batch: Batch) -> None:
        """Add validation rows to the sums that the report is made of; raises `VlpipeError` for NaN or infinity."""
        refuse_not_finite(batch.x["image"], "validation images", batch.ids)
        x = self._read(batch)
        values, indices = self.autoencoder.encode(x)
        x, error = x.double(), (x - self.autoencoder.decode(values, indices)).detach().double()
        sums = {"rows": torch.tensor(len(x)), "x": x.sum(dim=0), "squares": x.square().sum()}
        sums |= {"errors": error.square().sum(), "active": (values > 0).sum()}
        self.held_out = {name: self.held_out.get(name, torch.tensor(0)) + value for name, value in sums.items()}

    def report(self) -> dict[str, float]:
        """Dead latents; of validation rows the explained variance and the active latents a row.

        Without validation rows, or where these are all equal, the explained variance is left out.
        """
        found = {"dead_latents": float(len(self.dead())), "latents": float(self.autoencoder.latents)}
        sums = self.held_out
        if not sums:
            return found
        found["l0"] = float(sums["active"] / sums["rows"])
        varied = sums["squares"] - sums["x"].square().sum() / sums["rows"]
        if varied > NO_SPREAD * sums["squares"]:
            found["explained_variance"] = float(1 - sums["errors"] / varied)
        return found

    def codes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values and latents, (..., K) each, of raw embeddings (..., d), strongest first."""
        return self.autoencoder.encode(self._as_trained(x))

    def images(self, batch: Batch) -> Batch:
        """Reconstructions (n, d), not of unit length."""
        with torch.no_grad():
            rows = self.autoencoder(self._read(batch))
        return Batch(batch.ids, {"image": rows}, columns=batch.columns)

    def _read(self, batch: Batch) -> Tensor:
        return self._as_trained(batch.x["image"])

    def _as_trained(self, x: Tensor) -> Tensor:
        return unit(x) if self.config.unit_norm else working(x)

    def _revival(self, x: Tensor, residual: Tensor, dead: Tensor) -> Tensor:
        """The auxiliary loss; 0 when no latent is dead."""
        if not (len(dead) and self.config.aux_k and self.config.aux_weight):
            return x.new_zeros(())
        return losses.auxiliary(residual, self.autoencoder.revived(x, dead, self.config.aux_k))

    def _mark(self, values: Tensor, pattern: Pattern) -> None:
        """Remember which latents fire in this step."""
        fired = torch.zeros(self.autoencoder.latents, dtype=torch.bool, device=values.device)
        fired[pattern.indices[values > 0]] = True
        self._fired = len(values), fired
