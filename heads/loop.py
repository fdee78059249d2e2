"""The one training loop: epochs of shuffled images, for gradient and closed-form heads alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.progress import Advance, progress
from vlpipe.heads.checkpoint import Checkpoint
from vlpipe.heads.contracts import Batch, HeadConfig, Monitored, Prepared, Reported, Scheduled, Validated
from vlpipe.heads.data import Joined
from vlpipe.heads.tables import IntArray

Scalars = dict[str, float]
PREPARE_ROWS = 256  # images a batch, with all their texts


def train(head: Any, joined: Joined, config: HeadConfig, checkpoint: Checkpoint) -> Scalars:
    """Train from the last finished epoch on, and finish; the last epoch's mean scalars and the head's report.

    A resumed run equals an uninterrupted one to the bit: orders, draws and torch's own random numbers follow
    from the seed and the epoch. The learning rate is logged, but is no result.
    """
    steps = -(-len(joined.images("train")) // config.batch_size) * config.epochs
    if isinstance(head, Scheduled):
        head.configure(steps)
    done, scalars, stopped = checkpoint.load(head)
    if isinstance(head, Prepared) and not done:
        head.prepare(lambda: _whole(joined))
    with progress("training", steps - steps // max(1, config.epochs) * done) as advance:
        while done < config.epochs and not stopped:
            with seeded(config.seed, done):
                scalars = _epoch(head, joined, config, done, advance)
                done += 1
                stopped = _stops(head, joined, done)
            checkpoint.save(head, done, scalars, stopped=stopped)
    _finish(head, joined, config)
    results = {name: value for name, value in scalars.items() if name != "lr"}
    return results | (head.report() if isinstance(head, Reported) else {})


def check_images(joined: Joined, config: HeadConfig) -> None:
    """Raise `VlpipeError` when no image can be used at all, or none is there to learn from."""
    usable, training = len(joined.images(None)), len(joined.images("train"))
    if usable and (training or not config.epochs):
        return
    counts = joined.counts()
    if not usable:
        roles = [
            f"{name}: {n['usable']} usable, {n['failed']} failed, {n['absent']} absent"
            for name, n in counts["roles"].items()
        ]
        raise VlpipeError(
            f"none of {counts['images_left_out']} images has features for every role ({'; '.join(roles)}); make "
            "them with `vlpipe extract`, failed ones with its --retry-failed"
        )
    splits = ", ".join(f"{number} in '{name}'" for name, number in counts["images"].items())
    raise VlpipeError(
        f"no images to train on: usable images are {splits}; expected some in 'train'. Give another split rule "
        "(--split-rule random:0.7/0.15/0.15@0), or see which rows are missing with `vlpipe cache show`"
    )


def check_partial(joined: Joined, config: HeadConfig) -> None:
    """Raise `VlpipeError` for a partial role that no image that trains has."""
    if not config.epochs:
        return
    training = joined.images("train")
    for name, role in joined.roles.items():
        if role.partial and role.side == "text" and not joined.by_image[name].most(training):
            raise VlpipeError(
                f"none of {len(training)} training images has a cached text of role '{role.kind}', which the "
                f"head's '{name}' learns from; add some (`vlpipe manifest negatives`) and extract them"
            )


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Torch's random numbers as a function of some numbers, inside the block only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]))
        yield


def batches(images: IntArray, size: int) -> Iterator[IntArray]:
    """Consecutive positions, `size` at a time; the last batch may be smaller."""
    for start in range(0, len(images), size):
        yield images[start : start + size]


def _whole(joined: Joined) -> Iterator[Batch]:
    """The training images with all their texts."""
    for positions in batches(joined.images("train"), PREPARE_ROWS):
        yield joined.whole_batch(positions)


def _epoch(head: Any, joined: Joined, config: HeadConfig, epoch: int, advance: Advance) -> Scalars:
    """Every training image once; means of the scalars over images, but the last learning rate."""
    order = np.random.default_rng([config.seed, epoch]).permutation(joined.images("train"))
    totals: Scalars = {}
    latest: Scalars = {}
    head.train()
    for positions in batches(order, config.batch_size):
        latest = head.update(joined.training_batch(positions, config.seed, epoch))
        for name, value in latest.items():
            totals[name] = totals.get(name, 0.0) + value * len(positions)
        advance(1)
    means = {name: total / len(order) for name, total in totals.items()}
    return means | {name: value for name, value in latest.items() if name == "lr"}


def _stops(head: Any, joined: Joined, done: int) -> bool:
    """Whether the head, in evaluation mode, wants no more after so many finished epochs."""
    head.eval()
    if not isinstance(head, Monitored):
        return False
    return not head.after_epoch(done, lambda: joined.whole_batch(joined.images("val")))


def _finish(head: Any, joined: Joined, config: HeadConfig) -> None:
    head.eval()
    if isinstance(head, Validated):
        for positions in batches(joined.images("val"), config.batch_size):
            head.validate(joined.training_batch(positions, config.seed, config.epochs))
    head.finish()
