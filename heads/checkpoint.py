"""Weights and training state on disk, as safetensors and JSON lines: data, never programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.files import append_line, write_atomic
from vlpipe.heads.contracts import Resumable

Scalars = dict[str, float]
HEAD, TRAINING, EPOCH, STOPPED = "head/", "training/", "epoch", "stopped"


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """One safetensors file, whole or not at all."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomic(path, safetensors.torch.save(plain))


def load_tensors(path: Path, remedy: str) -> dict[str, Tensor]:
    """All tensors of a file; raises `VlpipeError` with the remedy when it is missing or damaged."""
    try:
        return safetensors.torch.load(path.read_bytes())
    except FileNotFoundError:
        raise VlpipeError(f"'{path}' is missing; {remedy}") from None
    except (SafetensorError, ValueError, KeyError) as error:
        raise VlpipeError(f"'{path}' is damaged ({error}); {remedy}") from None


def load_weights(head: Any, weights: dict[str, Tensor], path: Path, remedy: str) -> None:
    """Into the head, all of them; raises `VlpipeError` where names or shapes differ."""
    try:
        head.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise VlpipeError(f"'{path}' does not fit the head ({reason}); {remedy}") from None


class Checkpoint:
    """The state after each epoch in one atomic file of a run's folder, and the log beside it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "checkpoint.safetensors"
        self.log = folder / "log.jsonl"
        self.remedy = f"delete '{folder}' and train again"

    def save(self, head: Any, epoch: int, scalars: Scalars, *, stopped: bool = False) -> None:
        """After `epoch` finished epochs; `stopped` when the head wants no more."""
        append_line(self.log, {"epoch": epoch, **scalars})
        state = head.training_state() if isinstance(head, Resumable) else {}
        tensors = {HEAD + name: tensor for name, tensor in head.state_dict().items()}
        tensors |= {TRAINING + name: tensor for name, tensor in state.items()}
        save_tensors(self.path, tensors | {EPOCH: torch.tensor(epoch), STOPPED: torch.tensor(stopped)})

    def load(self, head: Any) -> tuple[int, Scalars, bool]:
        """Finished epochs, the last one's scalars, and whether the head stopped; cuts the log back to them.

        At the start that is 0, none and False.
        """
        if not self.path.exists():
            self._cut_log(0)
            return 0, {}, False
        tensors = load_tensors(self.path, self.remedy)
        epoch = int(tensors.get(EPOCH, torch.tensor(0)))
        weights = {name.removeprefix(HEAD): t for name, t in tensors.items() if name.startswith(HEAD)}
        load_weights(head, weights, self.path, self.remedy)
        if isinstance(head, Resumable):
            state = {name.removeprefix(TRAINING): t for name, t in tensors.items() if name.startswith(TRAINING)}
            head.load_training_state(state)
        return epoch, self._cut_log(epoch), bool(tensors.get(STOPPED, False))

    def discard(self) -> None:
        """The run is finished; only its weights stay."""
        self.path.unlink(missing_ok=True)

    def _cut_log(self, epoch: int) -> Scalars:
        """Drop lines of epochs that are done again (the process died between log and checkpoint)."""
        text = self.log.read_text(encoding="utf-8") if self.log.exists() else ""
        lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        kept = [line for line in lines if line["epoch"] <= epoch]
        write_atomic(self.log, "".join(json.dumps(line) + "\n" for line in kept).encode("utf-8"))
        return {name: value for name, value in kept[-1].items() if name != "epoch"} if kept else {}
