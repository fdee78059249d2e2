"""A transformers model written as its library does, beside the files that it is read with."""

from __future__ import annotations

import math
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

READ_WITH = (".json", ".txt", ".model", ".jinja")  # settings, tokenizers, processors


def save_whole(model: Any, lacking: Collection[str], folder: Path, logit_scale: float | None) -> None:
    """Weights and settings; tensors that the checkpoint was `lacking` stay out, as they are random."""
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in lacking}
    if logit_scale is not None and "logit_scale" in state:
        state["logit_scale"] = torch.full_like(state["logit_scale"], math.log(logit_scale))
    model.save_pretrained(folder, state_dict=state)


def copy_small_files(source: Path, folder: Path) -> None:
    """To the letter, all that a model's folder is read with but its weights."""
    for file in source.iterdir():
        if file.suffix in READ_WITH and not file.name.endswith(".index.json"):
            shutil.copyfile(file, folder / file.name)
