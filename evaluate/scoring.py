"""A head's exact scores over a split: every row encoded once, every block of pairs on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from vlpipe.evaluate.contracts import Inputs, IntArray
from vlpipe.foundation.progress import progress
from vlpipe.heads.contracts import Batch, Head
from vlpipe.heads.data import Joined

BATCH_ROWS = 1024


@dataclass(frozen=True)
class Scorer:
    """Scores of some images against some texts, in float64.

    Called with a slice of images and one of texts it returns their (images, texts) block.
    """

    head: Head
    joined: Joined
    image_positions: IntArray
    text_positions: IntArray

    @cached_property
    def images(self) -> Batch:
        """What the head makes of every image."""
        read = self.joined.image_batch
        return _encoded("images", self.head.images, read, self.image_positions)

    @cached_property
    def texts(self) -> Batch:
        """What the head makes of every text, read under the head's first text role."""
        role = self.joined.text_roles[0]
        return _encoded("texts", self.head.texts, lambda p: self.joined.text_batch(p, role), self.text_positions)

    def __call__(self, images: slice, texts: slice) -> Tensor:
        """The (images, texts) block."""
        with torch.inference_mode():
            return self.head.score(part(self.images, images), part(self.texts, texts))


def inputs_of(head: Head, joined: Joined, split: str | None, roles: Sequence[str]) -> Inputs:
    """The usable images of a split and their texts of these manifest roles; nothing is scored yet.

    The head must be in float64 (`head.double()`).
    """
    images = joined.images(split)
    texts = joined.texts_of(images, roles)
    local = np.full(len(joined.image_ids), -1, dtype=np.int64)
    local[images] = np.arange(len(images))
    image_of = joined.text_image[texts]
    return Inputs(
        image_ids=[joined.image_ids[p] for p in images],
        text_ids=[joined.text_ids[p] for p in texts],
        text_image=np.where(image_of >= 0, local[image_of], -1),
        scores=Scorer(head, joined, images, texts),
        columns={"role": [str(joined.text_role[p]) for p in texts]},
    )


def _encoded(
    label: str, encode: Callable[[Batch], Batch], read: Callable[[IntArray], Batch], positions: IntArray
) -> Batch:
    """All rows through a head, `BATCH_ROWS` at a time."""
    done: list[Batch] = []
    with progress(f"head: {label}", len(positions)) as advance, torch.inference_mode():
        for chunk in _chunks(positions):
            done.append(encode(as_float64(read(chunk))))
            advance(len(chunk))
    return concatenated(done)


def _chunks(positions: IntArray) -> Iterator[IntArray]:
    for start in range(0, len(positions), BATCH_ROWS):
        yield positions[start : start + BATCH_ROWS]


def as_float64(batch: Batch) -> Batch:
    """The batch with its floating rows in float64."""
    wide = {name: rows.double() if rows.is_floating_point() else rows for name, rows in batch.x.items()}
    return Batch(batch.ids, wide, batch.mask, batch.columns)


def part(batch: Batch, rows: slice) -> Batch:
    """Some rows of a batch, without copying its tensors."""
    return Batch(
        batch.ids[rows],
        {name: values[rows] for name, values in batch.x.items()},
        {name: values[rows] for name, values in batch.mask.items()},
        {name: values[rows] for name, values in batch.columns.items()},
    )


def concatenated(batches: Sequence[Batch]) -> Batch:
    """Batches one after the other; there is one at least."""
    first = batches[0]
    return Batch(
        [i for batch in batches for i in batch.ids],
        {name: torch.cat([batch.x[name] for batch in batches]) for name in first.x},
        {name: torch.cat([batch.mask[name] for batch in batches]) for name in first.mask},
        {name: [v for batch in batches for v in batch.columns[name]] for name in first.columns},
    )
