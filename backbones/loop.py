"""The one training loop of whole models: seeded, resumable, for any objective and any encoder's towers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from vlpipe.backbones.contracts import Objective, Stepped
from vlpipe.backbones.data import IntArray, Order, Pairs, take
from vlpipe.backbones.settings import LoopConfig
from vlpipe.backbones.state import Progress, modules, parameters, restore, save_state, save_weights
from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.files import append_line, write_atomic
from vlpipe.foundation.progress import progress
from vlpipe.heads.gradient import clip_gradients, learning_rate

LOG = "log.jsonl"
WARM_UP, TRAINING, CAPTIONS = 1, 2, 3  # purposes of random numbers, so that none are used twice


class Loop:
    """Trains the two towers and the objective on pairs, and keeps the run in a folder.

    The folder holds `weights.safetensors` (of the lowest validation loss; the last where there is nothing to
    validate on), `log.jsonl`, and `state.safetensors`, from which the same call continues after an interruption
    as if there had been none: on a CPU, to the bit.
    """

    def __init__(
        self, config: LoopConfig, towers: Mapping[str, nn.Module], objective: Objective, run: str
    ) -> None:
        self.config = config
        self.towers = towers
        self.objective = objective
        self.run_digest = run
        self.parts = modules(towers, cast(nn.Module, objective))
        self.learned = {
            part: [p for p in module.parameters() if p.requires_grad] for part, module in self.parts.items()
        }
        self.device = next(p.device for part in self.learned.values() for p in part)
        self.optimizer = torch.optim.AdamW(self._groups(), lr=config.lr)

    def _groups(self) -> list[dict[str, Any]]:
        """What learns, apart by rate and by decay."""
        config = self.config
        text_share = 1.0 if config.text_lr is None else config.text_lr / config.lr
        groups: list[dict[str, Any]] = [
            {
                "params": [p for part in parts for p in self.learned[part] if (p.ndim > 1) == decays],
                "weight_decay": config.weight_decay if decays else 0.0,
                "share": share,
            }
            for parts, share in ((("image", "objective"), 1.0), (("text",), text_share))
            for decays in (True, False)
        ]
        return [group for group in groups if group["params"]]

    def train(self, pairs: Pairs, held_out: Pairs | None, folder: Path) -> dict[str, Any]:
        """All steps that the folder's state does not have yet; the last line of the log.

        Raises `VlpipeError` when there are fewer images than a batch needs, when no image has two captions and the
        text tower is to be warmed up, and when the loss is not finite; `StaleError` when the folder holds another
        run.
        """
        with _threads(self.config.threads):
            done = restore(folder, self.parts, self.optimizer, self.run_digest)
            lines, losses = _kept_log(folder, done.step), []
            learn, total = self._learner(pairs), self.config.text_warmup_steps + self.config.steps
            with progress("training", total) as advance:
                advance(done.step)
                for step in range(done.step, total):
                    losses.append(learn(step))
                    advance(1)
                    if (step + 1) % self.config.save_every == 0 or step + 1 == total:
                        lines.append(self._save(step, float(np.mean(losses)), held_out, folder, done))
                        losses = []
        return lines[-1]

    def _save(
        self, step: int, loss: float, held_out: Pairs | None, folder: Path, done: Progress
    ) -> dict[str, Any]:
        """Validate, keep the weights where they are the best so far, and write what a resumed run begins with."""
        line: dict[str, Any] = {"step": step + 1, "phase": self._phase(step), "loss": loss}
        warming = step < self.config.text_warmup_steps
        value = math.inf
        if held_out is not None and not warming:
            value = line["validation_loss"] = self.validate(held_out)
            line["lowest_validation_loss"] = min(value, done.best)
        if value < done.best or held_out is None or warming:
            done.best = min(value, done.best)
            save_weights(folder, self.parts)
        done.step = step + 1
        append_line(folder / LOG, line)
        save_state(folder, self.parts, self.optimizer, done)
        return line

    def _phase(self, step: int) -> str:
        if step < self.config.text_warmup_steps:
            return "text warm-up"
        return "text frozen" if self._frozen(step - self.config.text_warmup_steps) else "both"

    def _frozen(self, step: int) -> bool:
        return step < round(self.config.text_frozen * self.config.steps)

    def _learner(self, pairs: Pairs) -> Callable[[int], float]:
        """What learns from one step, counted from the beginning of the warm-up, and tells its loss."""
        seed, warm = self.config.seed, self.config.text_warmup_steps
        order = Order(np.arange(len(pairs)), self.config.batch_size, [seed, TRAINING])
        two = Order(pairs.with_captions(2), self.config.text_warmup_batch, [seed, WARM_UP]) if warm else order

        def learn(step: int) -> float:
            if step < warm:
                return self._warm_up_step(pairs, two.at(step), step)
            return self._training_step(pairs, order.at(step - warm), step - warm)

        return learn

    def _warm_up_step(self, pairs: Pairs, rows: IntArray, step: int) -> float:
        """Two captions of an image find each other, so that words are told apart before images count."""
        self._learning(text=True, image=False, objective=False)
        self._seed(WARM_UP, step)
        picked = pairs.captions(rows, 2, np.random.default_rng([self.config.seed, CAPTIONS, WARM_UP, step]))
        texts = self._texts(pairs, picked)
        losses = self.objective.loss(texts[:, 0], texts[:, 1:], pairs.picked(rows, picked[:, 1:]))
        return self._descend(losses, self._rate(step, self.config.text_warmup_steps))

    def _training_step(self, pairs: Pairs, rows: IntArray, step: int) -> float:
        self._learning(text=not self._frozen(step), image=True, objective=True)
        self._seed(TRAINING, step)
        rng = np.random.default_rng([self.config.seed, CAPTIONS, TRAINING, step])
        picked = pairs.captions(rows, self.config.captions, rng)
        images = self.towers["image"](take(pairs.images, rows, self.device))
        losses = self.objective.loss(images, self._texts(pairs, picked), pairs.picked(rows, picked))
        return self._descend(losses, self._rate(step, self.config.steps))

    def _rate(self, step: int, steps: int) -> float:
        return learning_rate(step, steps, self.config.lr, self.config.warmup)

    def _texts(self, pairs: Pairs, picked: IntArray) -> Tensor:
        """(rows, K, d) of text positions (rows, K)."""
        embedded: Tensor = self.towers["text"](take(pairs.texts, picked, self.device))
        return embedded.view(*picked.shape, -1)

    def _descend(self, losses: Mapping[str, Tensor], rate: float) -> float:
        value = losses["loss"].item()
        if not math.isfinite(value):
            raise VlpipeError(
                f"the loss is {value}; lower lr (it is {self.config.lr:g}) or raise warmup, and begin again"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(losses["loss"])
        clip_gradients(parameters(self.parts), self.config.clip_norm)
        self.optimizer.step()
        if isinstance(self.objective, Stepped):
            self.objective.after_step()
        return value

    def _learning(self, **parts: bool) -> None:
        for part, learns in parts.items():
            self.parts[part].train(learns)
            for parameter in self.learned[part]:  # what was frozen from the start stays so
                parameter.requires_grad_(learns)

    def _seed(self, purpose: int, step: int) -> None:
        """Random layers draw by step, so that an interrupted run draws the same."""
        torch.manual_seed(int(np.random.default_rng([self.config.seed, purpose, step]).integers(2**62)))

    @torch.no_grad()
    def validate(self, pairs: Pairs) -> float:
        """The objective's loss over whole batches of held-out images, always the same captions."""
        for module in self.parts.values():
            module.eval()
        batch = min(self.config.batch_size, len(pairs))
        order = Order(np.arange(len(pairs)), batch, [self.config.seed, CAPTIONS])
        rng = np.random.default_rng([self.config.seed, CAPTIONS])
        values = []
        for rows in (order.at(step) for step in range(len(pairs) // batch)):
            images = self.towers["image"](take(pairs.images, rows, self.device))
            picked = pairs.captions(rows, self.config.captions, rng)
            losses = self.objective.loss(images, self._texts(pairs, picked), pairs.picked(rows, picked))
            values.append(losses["loss"].item())
        return float(np.mean(values))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _kept_log(folder: Path, step: int) -> list[dict[str, Any]]:
    """The log's lines up to a step; later ones, whose state was not saved, are dropped from the file."""
    path = folder / LOG
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    kept = [line for line in lines if line["step"] <= step]
    if len(kept) < len(lines):
        write_atomic(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
    return kept
