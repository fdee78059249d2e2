"""The best weights so far, and how long nothing got better."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Best:
    """Keeps a copy of a module's state at its best value; the first of equals stays."""

    def __init__(self) -> None:
        self.value = -1.0  # below every recall: nothing is kept yet
        self.epoch = 0
        self.waited = 0
        self.weights: dict[str, Tensor] = {}

    def see(self, module: nn.Module, value: float, epoch: int) -> None:
        """One check after `epoch` finished epochs."""
        if value > self.value:
            self.value, self.epoch, self.waited = value, epoch, 0
            self.weights = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
        else:
            self.waited += 1

    def take_up(self, module: nn.Module) -> None:
        """Give the module its best state back; without a check it keeps what it has."""
        if self.weights:
            module.load_state_dict(self.weights)

    def state(self) -> dict[str, Tensor]:
        """Plain tensors by name."""
        numbers = torch.tensor([self.value, self.epoch, self.waited], dtype=torch.float64)
        return {"best": numbers} | {f"best/{name}": tensor for name, tensor in self.weights.items()}

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Best:
        """What `state` gave."""
        found = cls()
        value, epoch, waited = state["best"].tolist()
        found.value, found.epoch, found.waited = value, int(epoch), int(waited)
        prefix = "best/"
        found.weights = {n.removeprefix(prefix): t.clone() for n, t in state.items() if n.startswith(prefix)}
        return found
