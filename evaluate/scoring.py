"""A head's exact scores over a split: every row encoded once, every block of pairs on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vlpipe.cache_store.layout import Side
from vlpipe.evaluate.asked import Asked, columns_at
from vlpipe.evaluate.codes import codes_of
from vlpipe.evaluate.contracts import Inputs, IntArray, Task
from vlpipe.evaluate.edits import edits_of
from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.progress import progress
from vlpipe.heads.contracts import Batch, Head, Mapped, Tempered
from vlpipe.heads.data import Joined
from vlpipe.heads.vectors import unit

BATCH_ROWS = 1024


@dataclass(frozen=True)
class Encoded:
    """What the head makes of some rows, and how many of them were zero, by role."""

    batch: Batch
    zeros: Mapping[str, int]


@dataclass(frozen=True)
class Scorer:
    """Scores of some images against some texts, in float64.

    Called with a slice of images and one of texts it returns their (images, texts) block. The other methods are
    those that `Inputs` describes.
    """

    head: Head
    joined: Joined
    image_positions: IntArray
    text_positions: IntArray

    @cached_property
    def images(self) -> Encoded:
        """Every image."""
        read = self.joined.image_batch
        return _encoded("images", self.head.images, read, self.image_positions)

    @cached_property
    def texts(self) -> Encoded:
        """Every text, read under the head's first text role."""
        role = self.joined.text_roles[0]
        return _encoded("texts", self.head.texts, lambda p: self.joined.text_batch(p, role), self.text_positions)

    def __call__(self, images: slice, texts: slice) -> Tensor:
        """The (images, texts) block."""
        with torch.inference_mode():
            return self.head.score(part(self.images.batch, images), part(self.texts.batch, texts))

    def pairs(self, images: IntArray, texts: IntArray) -> Tensor:
        """(rows,): score of each pair."""
        return self._by_pair(self.head.score_pairs, images, texts)

    def averages(self, groups: Sequence[IntArray]) -> Callable[[slice], Tensor]:
        """Called with a slice of images: their (images, groups) scores with the mean text of each group."""
        role = self.joined.text_roles[0]
        means = [self._mean(self.text_positions[group], role) for group in groups]
        with torch.inference_mode():
            parts = [self.head.texts(concatenated(means[at.start : at.stop])) for at in _slices(len(means))]
        classes = concatenated(parts)

        def scores(images: slice) -> Tensor:
            with torch.inference_mode():
                return self.head.score(part(self.images.batch, images), classes)

        return scores

    def _mean(self, positions: IntArray, role: str) -> Batch:
        """One text of several, as class prompts are averaged: the direction is that of the mean of the unit rows,
        the length the mean length, so that a head which reads lengths finds what it was trained on.
        """
        batch = as_float64(self.joined.text_batch(positions, role))
        rows = batch.x[role]
        if rows.ndim != 2:
            raise VlpipeError(f"texts of shape {tuple(rows.shape[1:])} a row cannot be averaged; expected vectors")
        mean = unit(unit(rows).mean(dim=0, keepdim=True)) * rows.norm(dim=1).mean()
        columns = {name: values[:1] for name, values in batch.columns.items()}
        return Batch(batch.ids[:1], {role: mean}, {role: batch.mask[role].any().reshape(1)}, columns)

    def temperatures(self, texts: slice) -> Tensor | None:
        """(texts,): the head's temperatures, None where it has none."""
        if not isinstance(self.head, Tempered):
            return None
        with torch.inference_mode():
            return self.head.temperature(part(self.texts.batch, texts))

    def maps(self, images: IntArray, texts: IntArray) -> Tensor | None:
        """(rows, patches): the head's map of each pair, None where it has none."""
        return self._by_pair(self.head.maps, images, texts) if isinstance(self.head, Mapped) else None

    def vectors(self, side: Side, positions: IntArray) -> Tensor:
        """(rows, *shape): what the head makes of images or texts, under its first role of that side."""
        images = side == "image"
        encoded, roles = (self.images, self.joined.image_roles) if images else (self.texts, self.joined.text_roles)
        return encoded.batch.x[roles[0]][torch.from_numpy(positions)]

    def zeros(self) -> dict[str, int]:
        """Zero rows by role."""
        return {**self.images.zeros, **(self.texts.zeros if self.joined.text_roles else {})}

    def image_rows(self, positions: IntArray) -> Batch:
        """What the head makes of some images."""
        return picked(self.images.batch, positions)

    def text_rows(self, positions: IntArray) -> Batch:
        """What the head makes of some texts."""
        return picked(self.texts.batch, positions)

    def _by_pair(self, of: Callable[[Batch, Batch], Tensor], images: IntArray, texts: IntArray) -> Tensor:
        """Row by row, `BATCH_ROWS` pairs at a time."""
        with torch.inference_mode():
            chunks = zip(_chunks(images), _chunks(texts), strict=True)
            return torch.cat([of(picked(self.images.batch, i), picked(self.texts.batch, t)) for i, t in chunks])


def inputs_of(head: Head, asked: Asked, task: Task, manifest: Path) -> Inputs:
    """The images and texts that are asked about and can be scored; nothing is encoded yet.

    The head must be in float64 (`head.double()`). Raises `UnknownNameError` for a column that the manifest does
    not have.
    """
    joined = asked.joined
    images, texts = asked.usable()
    local = np.full(len(joined.image_ids) + 1, -1, dtype=np.int64)  # the last entry is position -1: no image
    local[images] = np.arange(len(images))
    scorer = Scorer(head, joined, images, texts)
    roles = {"role": [str(joined.text_role[p]) for p in texts]}
    return Inputs(
        image_ids=[joined.image_ids[p] for p in images],
        text_ids=[joined.text_ids[p] for p in texts],
        text_image=local[joined.text_image[texts]],
        scores=scorer,
        columns=roles | columns_at(manifest, "text", task.columns, texts),
        image_columns=columns_at(manifest, "image", task.image_columns, images),
        pairs=scorer.pairs,
        averages=scorer.averages,
        temperatures=scorer.temperatures,
        maps=scorer.maps,
        vectors=scorer.vectors,
        edits=edits_of(scorer),
        codes=codes_of(scorer),
        zeros=scorer.zeros,
    )


def _encoded(
    label: str, encode: Callable[[Batch], Batch], read: Callable[[IntArray], Batch], positions: IntArray
) -> Encoded:
    """All rows through a head, `BATCH_ROWS` at a time."""
    done: list[Batch] = []
    zeros: dict[str, int] = {}
    with progress(f"head: {label}", len(positions)) as advance, torch.inference_mode():
        for chunk in _chunks(positions):
            batch = as_float64(read(chunk))
            done.append(encode(batch))
            for role, rows in batch.x.items():
                zero = batch.mask[role] & ~rows.flatten(1).any(1)
                zeros[role] = zeros.get(role, 0) + int(zero.sum())
            advance(len(chunk))
    return Encoded(concatenated(done), zeros)


def _slices(count: int) -> Iterator[slice]:
    """`BATCH_ROWS` at a time."""
    for start in range(0, count, BATCH_ROWS):
        yield slice(start, min(start + BATCH_ROWS, count))


def _chunks(positions: IntArray) -> Iterator[IntArray]:
    """At least one, which may be empty."""
    for start in range(0, max(1, len(positions)), BATCH_ROWS):
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


def picked(batch: Batch, rows: IntArray) -> Batch:
    """Rows of a batch at some positions, repeats allowed."""
    index = torch.from_numpy(rows)
    return Batch(
        [batch.ids[row] for row in rows],
        {name: values[index] for name, values in batch.x.items()},
        {name: values[index] for name, values in batch.mask.items()},
        {name: [values[row] for row in rows] for name, values in batch.columns.items()},
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
