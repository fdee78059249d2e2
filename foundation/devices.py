"""Where torch computes."""

from __future__ import annotations

import torch

from vlpipe.foundation.errors import VlpipeError


def pick_device(name: str) -> torch.device:
    """`auto` is cuda where there is one, else the CPU. Raises `VlpipeError` for one that cannot compute."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # `meta` makes tensors, and has no values
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise VlpipeError(f"device '{name}' cannot be used ({reason}); expected auto, cpu or cuda") from None
    return device
