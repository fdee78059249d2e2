"""What a training run keeps on disk: weights that extract can load, and the state that it resumes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from vlpipe.foundation.errors import StaleError, VlpipeError
from vlpipe.foundation.files import write_atomic

WEIGHTS = "weights.safetensors"
STATE = "state.safetensors"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass
class Progress:
    """How far a run is: steps done, the lowest validation loss, and what run this is (a digest)."""

    step: int = 0
    best: float = float("inf")
    run: str = ""


def modules(towers: Mapping[str, nn.Module], objective: nn.Module) -> dict[str, nn.Module]:
    """Everything that learns, by the prefix of its tensors' names: image, text, objective."""
    return {**towers, "objective": objective}


def weights(parts: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """All tensors as `image.NAME`, `text.NAME`, `objective.NAME`."""
    return {
        f"{part}.{name}": tensor.detach().contiguous()
        for part, module in parts.items()
        for name, tensor in module.state_dict().items()
    }


def parameters(parts: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    """All parameters by the same names."""
    return {f"{part}.{name}": p for part, module in parts.items() for name, p in module.named_parameters()}


def save_weights(folder: Path, parts: Mapping[str, nn.Module]) -> None:
    """Write the weights that extract can load."""
    write_atomic(folder / WEIGHTS, save(weights(parts), {"format": "pt"}))


def load_weights(folder: Path, parts: Mapping[str, nn.Module]) -> None:
    """Take up what `save_weights` wrote; raises `VlpipeError` when it cannot be read."""
    _take_up(parts, _tensors(folder / WEIGHTS))


def save_state(
    folder: Path, parts: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    """Write all that the next step depends on."""
    tensors = {f"model.{name}": tensor for name, tensor in weights(parts).items()}
    for name, parameter in parameters(parts).items():
        for moment in MOMENTS if parameter in optimizer.state else ():
            tensors[f"{moment}.{name}"] = optimizer.state[parameter][moment]
    described = json.dumps({"step": progress.step, "best": repr(progress.best), "run": progress.run})
    tensors["progress"] = torch.tensor(list(described.encode()), dtype=torch.uint8)
    write_atomic(folder / STATE, save(tensors))


def restore(folder: Path, parts: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer, run: str) -> Progress:
    """Continue where a run in this folder stopped, or begin.

    Raises `StaleError` when the folder holds another run's state, `VlpipeError` when the state cannot be read.
    """
    if not (folder / STATE).is_file():
        return Progress(run=run)
    tensors = _tensors(folder / STATE)
    described = json.loads(bytes(tensors.pop("progress").tolist()))
    if described["run"] != run:
        raise StaleError(
            f"'{folder}' holds a run with other settings, encoder or manifest; choose another --out or remove it"
        )
    _take_up(parts, tensors, "model.")
    for name, parameter in parameters(parts).items():
        if f"step.{name}" in tensors:
            optimizer.state[parameter] = {
                moment: tensors[f"{moment}.{name}"].to("cpu" if moment == "step" else parameter.device)
                for moment in MOMENTS
            }  # AdamW counts its steps on the CPU
    return Progress(described["step"], float(described["best"]), run)


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except Exception as error:  # safetensors raises a kind of its own for every damage
        raise VlpipeError(f"'{path}' cannot be read ({error}); remove '{path.parent}' to begin again") from None
    return tensors


def _take_up(parts: Mapping[str, nn.Module], tensors: Mapping[str, Tensor], before: str = "") -> None:
    for part, module in parts.items():
        prefix = f"{before}{part}."
        module.load_state_dict({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
