"""The one training loop: epochs of shuffled images, for gradient and closed-form heads alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from vlpipe.foundation.progress import Advance, progress
from vlpipe.heads.checkpoint import Checkpoint
from vlpipe.heads.contracts import Batch, HeadConfig, Monitored, Prepared, Reported, Scheduled, Validated
from vlpipe.heads.data import Joined
from vlpipe.heads.tables import IntArray

Scalars = dict[str, float]
PREPARE_ROWS = 256  # images a batch, with all their texts


class Learner:
    """A head in training: what it reads, and how far it is. It learns on `device`, and ends on the CPU.

    A resumed run equals an uninterrupted one, on a CPU to the bit: orders, draws and torch's own random numbers
    follow from the seed and the epoch.
    """

    def __init__(
        self, head: Any, joined: Joined, config: HeadConfig, checkpoint: Checkpoint, device: str | torch.device
    ) -> None:
        self.head = head
        self.joined = joined
        self.config = config
        self.checkpoint = checkpoint
        self.device = torch.device(device)
        self.steps = -(-len(joined.images("train")) // config.batch_size)  # an epoch
        self.done = 0
        self.scalars: Scalars = {}
        self._stopped = False

    @property
    def learns(self) -> bool:
        """Whether there is another epoch."""
        return self.done < self.config.epochs and not self._stopped

    def start(self) -> None:
        """Go on after the last finished epoch that was kept, or prepare for the first."""
        if isinstance(self.head, Scheduled):
            self.head.configure(self.steps * self.config.epochs)
        self.head.to(self.device)
        self.done, self.scalars, self._stopped = self.checkpoint.load(self.head, self.device)
        if isinstance(self.head, Prepared) and not self.done:
            self.head.prepare(lambda: map(self._here, _whole(self.joined)))

    def batches(self) -> Iterator[Batch]:
        """Every training image once, in the order of this epoch."""
        seed, size = self.config.seed, self.config.batch_size
        order = np.random.default_rng([seed, self.done]).permutation(self.joined.images("train"))
        return map(self._here, self.joined.training_batches(order, size, seed, self.done))

    def end_epoch(self, scalars: Scalars) -> None:
        """Count the epoch, whose mean scalars these are, and keep what it made; the head may stop for good."""
        self.scalars = scalars
        self.done += 1
        self.head.eval()
        if isinstance(self.head, Monitored):
            self._stopped = not self.head.after_epoch(self.done, self._validation)
        self.checkpoint.save(self.head, self.done, scalars, stopped=self._stopped)

    def finish(self) -> Scalars:
        """The last epoch's mean scalars and the head's report; the learning rate is logged, but is no result."""
        self.head.eval()
        if isinstance(self.head, Validated):
            for positions in batches(self.joined.images("val"), self.config.batch_size):
                batch = self.joined.training_batch(positions, self.config.seed, self.config.epochs)
                self.head.validate(self._here(batch))
        self.head.finish()
        results = {name: value for name, value in self.scalars.items() if name != "lr"}
        results |= self.head.report() if isinstance(self.head, Reported) else {}
        self.head.cpu()
        return results

    def _validation(self) -> Batch:
        return self._here(self.joined.whole_batch(self.joined.images("val")))

    def _here(self, batch: Batch) -> Batch:
        """The batch on the learner's device."""
        if self.device.type == "cpu":
            return batch
        x, mask = ({n: t.to(self.device) for n, t in part.items()} for part in (batch.x, batch.mask))
        return Batch(batch.ids, x, mask, batch.columns)


class Means:
    """Means of scalars over images; of the learning rate, the last.

    Steps of fewer images than `least` do not count: where images are compared, the loss of a lone one is 0.
    """

    def __init__(self, least: int = 1) -> None:
        self.least = least
        self._totals: Scalars = {}
        self._latest: Scalars = {}
        self._count = 0

    def add(self, scalars: Scalars, images: int) -> None:
        """Those of a step of so many images."""
        self._latest = scalars
        if images < self.least:
            return
        for name, value in scalars.items():
            self._totals[name] = self._totals.get(name, 0.0) + value * images
        self._count += images

    def found(self) -> Scalars:
        """By name."""
        means = {name: total / self._count for name, total in self._totals.items()}
        return means | {name: value for name, value in self._latest.items() if name == "lr"}


def train(learner: Learner) -> Scalars:
    """Train from the last finished epoch on, and finish; what `Learner.finish` says."""
    config = learner.config
    learner.start()
    with progress("training", learner.steps * (config.epochs - learner.done)) as advance:
        while learner.learns:
            with seeded(config.seed, learner.done):
                learner.end_epoch(epoch_of(learner, advance))
    return learner.finish()


def epoch_of(learner: Learner, advance: Advance) -> Scalars:
    """One epoch; means of the scalars over images."""
    head, means = learner.head, Means(learner.config.least_images)
    head.train()
    for batch in learner.batches():
        means.add(head.update(batch), len(batch.ids))
        advance(1)
    return means.found()


def stream_seed(*numbers: int) -> int:
    """A seed of torch's random numbers as a function of some numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Torch's random numbers as a function of some numbers, inside the block only."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = [torch.cuda.current_device()] if used else []  # to ask for it would begin to use CUDA
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(stream_seed(*numbers))
        yield


def batches(images: IntArray, size: int) -> Iterator[IntArray]:
    """Consecutive positions, `size` at a time; the last batch may be smaller."""
    for start in range(0, len(images), size):
        yield images[start : start + size]


def _whole(joined: Joined) -> Iterator[Batch]:
    """The training images with all their texts."""
    for positions in batches(joined.images("train"), PREPARE_ROWS):
        yield joined.whole_batch(positions)
