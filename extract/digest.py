"""What weights are: a digest of tensors, the same wherever and however they were loaded from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def tensors_digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over sorted names, dtypes, shapes and raw bytes, 64 hexadecimal digits."""
    total = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        total.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        if tensor.numel():
            total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
