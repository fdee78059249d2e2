"""Weights and training state on disk, as safetensors and JSON lines: data, never programs."""

from __future__ import annotations

import hashlib
import json
import math
import time
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
CHECKPOINT = "checkpoint.safetensors"
HEAD, TRAINING, SCALARS, EPOCH, STOPPED = "head/", "training/", "scalars/", "epoch", "stopped"
SHARE = 0.01  # of the training's time that writing may take
CPU = torch.device("cpu")
DIGEST = "digest"  # of all other tensors of a checkpoint


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """One safetensors file, whole or not at all."""
    write_atomic(path, _serialised(tensors))


def _serialised(tensors: dict[str, Tensor]) -> bytes:
    """The same bytes for the same tensors, whatever their order."""
    return safetensors.torch.save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()})


def weights_digest(tensors: dict[str, Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and values, 64 hexadecimal digits: that of the file that they make."""
    return hashlib.sha256(_serialised(tensors)).hexdigest()


def _digest(tensors: dict[str, Tensor]) -> Tensor:
    """`weights_digest` as uint8 (32,)."""
    return torch.tensor(list(bytes.fromhex(weights_digest(tensors))), dtype=torch.uint8)


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
    """The state after an epoch in one atomic file of a run's folder, and the log of every epoch beside it.

    The file holds a digest of its tensors: a flipped bit would else change the resumed weights unseen. After the
    first one it is left out until writing takes `SHARE` of the time or less, of all `writers` that train at once;
    a killed run does the epochs since again.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / CHECKPOINT
        self.log = folder / "log.jsonl"
        self.remedy = f"delete '{folder}' and train again"
        self.writers = 1
        self.cost = 0.0  # seconds of the last write
        self.written = -math.inf

    def save(self, head: Any, epoch: int, scalars: Scalars, *, stopped: bool = False) -> None:
        """After `epoch` finished epochs; `stopped` when the head wants no more."""
        append_line(self.log, {"epoch": epoch, **scalars})
        start = time.monotonic()
        if start - self.written < self.writers * self.cost / SHARE and not stopped:
            return
        state = head.training_state() if isinstance(head, Resumable) else {}
        tensors = {HEAD + name: tensor for name, tensor in head.state_dict().items()}
        tensors |= {TRAINING + name: tensor for name, tensor in state.items()}
        tensors |= {SCALARS + name: torch.tensor(value, dtype=torch.float64) for name, value in scalars.items()}
        tensors |= {EPOCH: torch.tensor(epoch), STOPPED: torch.tensor(stopped)}
        save_tensors(self.path, tensors | {DIGEST: _digest(tensors)})
        self.written = time.monotonic()
        self.cost = self.written - start

    def load(self, head: Any, device: torch.device = CPU) -> tuple[int, Scalars, bool]:
        """Finished epochs, the last one's scalars, and whether the head stopped; cuts the log back to them.

        The head takes up its training state on a device. At the start that is 0, none and False. Raises
        `VlpipeError` for a damaged file.
        """
        if not self.path.exists():
            self._cut_log(0)
            return 0, {}, False
        tensors = load_tensors(self.path, self.remedy)
        kept = tensors.pop(DIGEST, None)
        if kept is None or not torch.equal(kept, _digest(tensors)):
            raise VlpipeError(f"'{self.path}' is damaged (its digest is another); {self.remedy}")
        load_weights(head, _under(HEAD, tensors), self.path, self.remedy)
        if isinstance(head, Resumable):
            state = _under(TRAINING, tensors)
            head.load_training_state({name: tensor.to(device) for name, tensor in state.items()})
        epoch = int(tensors[EPOCH])
        self._cut_log(epoch)
        scalars = {name: float(value) for name, value in _under(SCALARS, tensors).items()}
        return epoch, scalars, bool(tensors[STOPPED])

    def discard(self) -> None:
        """The run is finished; only its weights stay."""
        self.path.unlink(missing_ok=True)

    def _cut_log(self, epoch: int) -> None:
        """Drop lines of epochs that are done again (a death between log and checkpoint), and torn ones."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        lines = [line for line in map(_parsed, text.splitlines()) if line is not None]
        kept = [line for line in lines if line["epoch"] <= epoch]
        write_atomic(self.log, "".join(json.dumps(line) + "\n" for line in kept).encode("utf-8"))


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _parsed(line: str) -> dict[str, Any] | None:
    """One line of a log; None when it is none."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("epoch"), int) else None
