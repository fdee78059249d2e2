"""What heads that learn by gradient share: AdamW, its schedule, and a state made of plain tensors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.contracts import Batch, GradientConfig

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def learning_rate(step: int, total: int, peak: float, warmup: float) -> float:
    """The rate of 0-based `step` of `total`: linear over the first `warmup` share, then a cosine to 0.

    The first step already learns; the last but one step of the cosine is above 0. Steps beyond `total` stay at 0.
    """
    rising = round(warmup * total)
    if step < rising:
        return peak * (step + 1) / rising
    share = min(1.0, (step - rising) / max(1, total - rising))
    return peak * 0.5 * (1 + math.cos(math.pi * share))


def clip_gradients(parameters: Mapping[str, nn.Parameter], most: float) -> None:
    """Scale all gradients so that their norm together is `most` at most.

    Raises `VlpipeError` that names a parameter where the norm is not finite: scaled by it, every gradient would be
    zero, and training would go on without learning.
    """
    norm = nn.utils.get_total_norm([p.grad for p in parameters.values() if p.grad is not None])
    if not math.isfinite(norm):
        found = [name for name, p in parameters.items() if p.grad is not None and not math.isfinite(p.grad.norm())]
        raise VlpipeError(
            f"the norm of the gradients is {float(norm)}, by {', '.join(map(repr, found[:3])) or 'all together'}; "
            "expected a finite one. A column that is constant but for rounding, standardised on its way, does this"
        )
    nn.utils.clip_grads_with_norm_(parameters.values(), most, norm)


class GradientHead(nn.Module, ABC):
    """Supplies `update` from `loss`; a head adds its parameters, `loss`, and how it scores.

    Without `configure` the learning rate is constant. A head of many weights sets `fused`: one pass over them.

    Heads whose `loss` is made of what `torch.func.vmap` takes (no row count that depends on the data, no draws but
    through `Dropout`) can train as one (`vlpipe.heads.stack`): `together` names the settings in which they may
    differ, beside those of the optimiser. What of these `loss` reads comes from `weights`. In such a step a batch
    has rows and masks, but no ids and no columns.
    """

    fused: ClassVar[bool] = False
    together: ClassVar[frozenset[str] | None] = None

    def __init__(self, config: GradientConfig) -> None:
        super().__init__()
        self.settings = config
        self.total_steps: int | None = None
        self.steps = 0
        self.given: Mapping[str, Tensor] | None = None
        self._optimizer: torch.optim.AdamW | None = None

    @abstractmethod
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Scalars by name; 'loss' is minimised, the others are logged."""

    def numbers(self) -> dict[str, float]:
        """What `loss` reads of the settings in this step, by name, where heads that train as one may differ."""
        return {}

    def weights(self) -> Mapping[str, float | Tensor]:
        """`numbers`, or what was `given` in their place: while heads train as one, a scalar tensor each."""
        return self.numbers() if self.given is None else self.given

    def noise(self, batch: Batch, generator: torch.Generator) -> list[Tensor]:
        """What each `Dropout` multiplies by in this step, in their order; a head that has none needs none."""
        return []

    def after_step(self) -> None:
        """Called after every optimiser step: projections, clamps."""

    def finish(self) -> None:
        """Nothing is left to do after the last epoch, by default."""

    def configure(self, total_steps: int) -> None:
        """Set the length that warm-up and decay are shares of."""
        self.total_steps = total_steps

    def optimizer(self) -> torch.optim.AdamW:
        """The optimiser over all parameters, made when first needed; biases, norms and scales never decay."""
        if self._optimizer is None:
            every = list(self.parameters())
            groups = [
                {"params": [p for p in every if p.ndim > 1], "weight_decay": self.settings.weight_decay},
                {"params": [p for p in every if p.ndim <= 1], "weight_decay": 0.0},
            ]
            self._optimizer = torch.optim.AdamW(groups, lr=self.settings.lr, fused=self.fused)
        return self._optimizer

    def update(self, batch: Batch) -> dict[str, float]:
        """One step of AdamW; raises `VlpipeError` when the loss is not finite, before any weight has changed."""
        found = self.loss(batch)
        scalars = {name: value.item() for name, value in found.items()}
        self.optimizer().zero_grad(set_to_none=True)
        found["loss"].backward()  # type: ignore[no-untyped-call]
        return self.learn(scalars)

    def learn(self, scalars: dict[str, float]) -> dict[str, float]:
        """The part of a step after the gradients; raises `VlpipeError` for a scalar that is not finite."""
        self._refuse_non_finite(scalars)
        optimizer, rate = self.optimizer(), self._rate()
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("share", 1.0)
        clip_gradients(dict(self.named_parameters()), self.settings.clip_norm)
        optimizer.step()
        self.steps += 1
        self.after_step()
        return scalars | {"lr": rate}

    def training_state(self) -> dict[str, Tensor]:
        """The number of steps and AdamW's moments by parameter name, as plain tensors."""
        kept = {"steps": torch.tensor(self.steps)}
        moments = self.optimizer().state
        for name, parameter in self.named_parameters():
            for moment in MOMENTS:
                if moment in moments.get(parameter, {}):
                    kept[f"{moment}/{name}"] = moments[parameter][moment].detach().clone()
        return kept

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `training_state` gave."""
        self.steps = int(state["steps"])
        moments = self.optimizer().state
        for name, parameter in self.named_parameters():
            found = {m: state[f"{m}/{name}"].clone() for m in MOMENTS if f"{m}/{name}" in state}
            if found and not self.fused:
                found["step"] = found["step"].cpu()  # where AdamW keeps it, unless it is fused
            if found:
                moments[parameter] = found

    def _rate(self) -> float:
        if self.total_steps is None:
            return self.settings.lr
        return learning_rate(self.steps, self.total_steps, self.settings.lr, self.settings.warmup)

    def _refuse_non_finite(self, scalars: Mapping[str, float]) -> None:
        """Raise `VlpipeError` for a scalar of this step that is not finite."""
        for name, value in scalars.items():
            if not math.isfinite(value):
                raise VlpipeError(
                    f"{name} is {value} at step {self.steps + 1}; expected a finite number: "
                    f"try a lower lr (now {self.settings.lr:g})"
                )
