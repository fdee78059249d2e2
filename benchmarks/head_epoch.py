"""What an epoch of `train-head` costs beyond the head's own arithmetic: reading, joining, checks, log, checkpoint.

    python benchmarks/head_epoch.py [--only jam] [--batch 32 --batch 128] [--rounds 15]

1,024 images with five captions, a hard negative each, widths 384, random numbers in float16; one thread. *Bare*
is the loss, its gradients, clipping, AdamW over batches that lie ready in float32, with the order and the draws of
that epoch. Every round runs an epoch of each. Printed are the median of the epochs' ratios, and the share of the
bare time that all checkpoints and log lines took: of CPU seconds and of wall time.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from made_features import ENCODER, make
from torch import nn

from vlpipe.foundation.config import resolve
from vlpipe.foundation.progress import silent
from vlpipe.heads import loop
from vlpipe.heads.checkpoint import Checkpoint
from vlpipe.heads.contracts import Batch, load_head
from vlpipe.heads.data import Joined
from vlpipe.heads.opening import Opener
from vlpipe.heads.sweep import Request, plan

IMAGES = 1024
HEADS: dict[str, dict[str, Any]] = {
    "jam": {},
    "projection": {},
    "tpc": {},
}


class Timed:
    """CPU seconds and wall time of each of some calls."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def run(self, work: Callable[[], Any]) -> None:
        """One call."""
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)


def bare_epoch(head: Any, batches: list[Batch]) -> None:
    """The arithmetic alone."""
    optimizer = head.optimizer()
    for batch in batches:
        loss = head.loss(batch)["loss"]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), head.settings.clip_norm)
        optimizer.step()
        head.steps += 1
        head.after_step()


def ready(joined: Joined, seed: int, epoch: int, size: int) -> list[Batch]:
    """An epoch's batches."""
    order = np.random.default_rng([seed, epoch]).permutation(joined.images("train"))
    return [joined.training_batch(part, seed, epoch) for part in loop.batches(order, size)]


def measure(folder: Path, opener: Opener, kind: str, batch: int, rounds: int) -> str:
    """One line of the table."""
    request = Request(kind, opener, folder / "runs", encoder=ENCODER)
    config = resolve(load_head(kind).Config, {"batch_size": batch, "epochs": rounds, **HEADS[kind]})
    made = plan(request, config)
    head: Any = made.head(config, made.joined.shapes())
    head.configure(rounds * -(-IMAGES // batch))
    if hasattr(head, "prepare"):
        head.prepare(lambda: loop._whole(made.joined))
    other = copy.deepcopy(head)
    (folder / "run").mkdir(exist_ok=True)
    checkpoint = Checkpoint(folder / "run")
    learner = loop.Learner(head, made.joined, config, checkpoint, "cpu")
    ours, bare, kept = Timed(), Timed(), Timed()
    for epoch in range(rounds):
        batches = ready(made.joined, config.seed, epoch, batch)

        other.train()
        turns: list[tuple[Timed, Callable[[], Any]]] = [
            (ours, lambda: loop.epoch_of(learner, silent)),
            (bare, lambda batches=batches: bare_epoch(other, batches)),
        ]
        for timed, work in turns if epoch % 2 else turns[::-1]:
            timed.run(work)
        learner.done += 1
        kept.run(lambda: checkpoint.save(head, learner.done, {"loss": 0.0}))
    told = []
    for name, mine, base, last in (
        ("CPU", ours.cpu, bare.cpu, kept.cpu),
        ("wall", ours.wall, bare.wall, kept.wall),
    ):
        ratio = statistics.median(a / b for a, b in zip(mine[1:], base[1:], strict=True))
        told.append(f"{ratio:.3f} and {sum(last) / sum(base):.3f} {name}")
    return f"{kind:10} batch {batch:4}: bare {1000 * statistics.median(bare.cpu[1:]):7.1f} ms; {', '.join(told)}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(HEADS))
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=15)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, IMAGES, 384, 250)
        opener = Opener(folder / "manifest", folder / "cache", folder / "runs")
        for kind in chosen.only or HEADS:
            for batch in chosen.batch or [32, 128, 1024]:
                print(measure(folder, opener, kind, batch, chosen.rounds), flush=True)


if __name__ == "__main__":
    main()
