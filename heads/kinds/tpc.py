"""TPC's core filter on frozen features: from one caption to what all captions of its image agree on.

"Text as Partial Constraint", sections 4.1 to 4.6; the values of appendix B.4 are the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from vlpipe.heads import tpc_losses as losses
from vlpipe.heads.contracts import Batch, GradientConfig, Role, Shapes
from vlpipe.heads.gradient import GradientHead
from vlpipe.heads.vectors import cosine_pairs, cosines, unit


class Tpc(GradientHead):
    """The linear core filter of Eq. 4, `c_hat = norm(W_c t + b_c)`, from the identity on.

    On frozen features Eq. 7 does not depend on the filter: it is logged, and `lambda_agree * Eq. 8 + lambda_nc *
    Eq. 6` is trained, with `align` times the distance of `c_hat` to the image beside it when asked. Raises
    `VlpipeError` when images and texts have different widths.
    """

    class Config(GradientConfig):
        """`views` captions of an image are drawn each step (K' of K); tau_0 and gamma only scale confidences."""

        epochs: int = Field(default=20, ge=0)
        views: int = Field(default=5, ge=1)
        lambda_agree: float = Field(default=1.0, ge=0)
        lambda_nc: float = Field(default=0.1, ge=0)
        align: float = Field(default=0.0, ge=0)
        tau_0: float = Field(default=0.07, gt=0)
        gamma: float = Field(default=1.0, ge=0)

    roles: ClassVar[Mapping[str, Role]] = {"image": Role("image"), "text": Role("text", per_image=5)}
    code: ClassVar[int] = 2
    together: ClassVar[frozenset[str]] = frozenset(["lambda_agree", "lambda_nc", "align", "tau_0", "gamma"])

    @classmethod
    def roles_for(cls, config: Config) -> Mapping[str, Role]:
        """The image, and as many captions as the config says."""
        return {"image": Role("image"), "text": Role("text", per_image=config.views)}

    def __init__(self, config: Config, shapes: Shapes) -> None:
        super().__init__(config)
        width = shapes.shared_width("tpc")
        self.config = config
        self.filter = nn.Linear(width, width)
        with torch.no_grad():
            self.filter.weight.copy_(torch.eye(width))
            self.filter.bias.zero_()

    def core(self, t: Tensor) -> Tensor:
        """Eq. 4, unit texts (..., d) to unit cores (..., d), in the texts' precision."""
        weight, bias = self.filter.weight.to(t.dtype), self.filter.bias.to(t.dtype)
        return unit(t @ weight.T + bias)

    def numbers(self) -> dict[str, float]:
        """Weights of the parts, and what scales confidences."""
        chosen = self.config
        weights = {"agree": chosen.lambda_agree, "nc": chosen.lambda_nc, "align": chosen.align}
        return weights | {"tau_0": chosen.tau_0, "gamma": chosen.gamma}

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Eq. 9 without the part that the filter cannot change; `x["text"]` is (B, K, d), or (B, d) for K = 1."""
        v, t = unit(batch.x["image"]), unit(batch.x["text"])
        mask = batch.mask.get("text", torch.ones(t.shape[:-1], dtype=torch.bool, device=t.device))
        if t.dim() == 2:
            t, mask = t.unsqueeze(1), mask.unsqueeze(1)
        # A zero row says nothing and is no view: through norm(0) it would drown every other gradient.
        mask = mask & t.any(dim=-1)
        c, c_hat = losses.consensus(t, mask), self.core(t)
        u = losses.disagreement(t, c, mask)
        agree = losses.agreement(c_hat, c, mask)
        commit = losses.non_commitment(v, losses.residual(t, c_hat), mask)
        align = losses.alignment(v, c_hat, mask)
        by = self.weights()
        core = losses.core(v, c, losses.core_temperature(u, by["tau_0"], by["gamma"]))
        total = by["agree"] * agree + by["nc"] * commit + by["align"] * align
        return {"loss": total, "agree": agree, "nc": commit, "align": align, "core": core.detach(), "u": u.mean()}

    def images(self, batch: Batch) -> Batch:
        """Unit rows (n, d)."""
        return Batch(batch.ids, {"image": unit(batch.x["image"])}, columns=batch.columns)

    def texts(self, batch: Batch) -> Batch:
        """Unit cores (n, d) under "text", and each text's residual energy (n,) under "u"."""
        with torch.no_grad():
            t = unit(batch.x["text"])
            c_hat = self.core(t)
        x = {"text": c_hat, "u": losses.residual_energy(t, c_hat)}
        return Batch(batch.ids, x, columns=batch.columns)

    def score(self, images: Batch, texts: Batch) -> Tensor:
        """Core similarity `v . c_hat`, (images, texts)."""
        return cosines(images.x["image"], texts.x["text"])

    def score_pairs(self, images: Batch, texts: Batch) -> Tensor:
        """Core similarity, (rows,)."""
        return cosine_pairs(images.x["image"], texts.x["text"])

    def temperature(self, texts: Batch) -> Tensor:
        """`tau_0 (1 + gamma u_hat)`, not clipped (section 4.6): (rows,)."""
        return self.config.tau_0 * (1 + self.config.gamma * texts.x["u"])
