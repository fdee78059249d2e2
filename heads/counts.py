"""How large a head is: parameters, and arithmetic of one row."""

from __future__ import annotations

from torch import nn


def size_of(module: nn.Module) -> dict[str, float]:
    """Parameters, and FLOPs of a forward pass of one image and one text: 2 a multiply-add of every linear layer.

    Normalisation, activations and adding biases are left out (under 1 % at the paper's widths).
    """
    linear = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    return {
        "parameters": float(sum(parameter.numel() for parameter in module.parameters())),
        "flops": float(sum(2 * layer.in_features * layer.out_features for layer in linear)),
    }
