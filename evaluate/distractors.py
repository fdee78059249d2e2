"""Captions of other images that stand against an image's own one in a choice among several (JAM, section 4)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from vlpipe.evaluate.contracts import Inputs, IntArray

NONE = -1


def distractors_of(inputs: Inputs, images: IntArray, count: int, seed: int) -> IntArray:
    """For each of some images, captions of `count` other images, one of each: (n, count), or -1 throughout.

    Drawn evenly over the images that have captions, by the seed, and never a text that is a caption of the image,
    too; where fewer other images have such a text, none is drawn. Reads the columns "role" and "text".
    """
    captions = np.flatnonzero((np.array(inputs.columns["role"]) == "caption") & (inputs.text_image >= 0))
    captions = captions[np.argsort(inputs.text_image[captions], kind="stable")]
    known, starts, sizes = np.unique(inputs.text_image[captions], return_index=True, return_counts=True)
    if len(known) <= count:
        return np.full((len(images), count), NONE, dtype=np.int64)
    own, of = np.searchsorted(known, images), np.repeat(np.arange(len(known)), sizes)
    draw = np.random.default_rng(seed)
    chosen = _others(own, count, len(known), draw)
    drawn: IntArray = starts[chosen] + draw.integers(0, sizes[chosen])
    said = _numbered([inputs.columns["text"][place] for place in captions.tolist()])
    width = len(said)  # an image and a text of it are one number
    true = np.isin(own[:, None] * width + said[drawn], of * width + said)
    for row in np.flatnonzero(true.any(axis=1)):  # few, where captions say much
        false = np.flatnonzero(~np.isin(said, said[of == own[row]]))
        drawn[row] = _one_each(false, of[false], count, draw)
    return np.where(drawn >= 0, captions[drawn], NONE)


def _others(own: IntArray, count: int, size: int, draw: np.random.Generator) -> IntArray:
    """(n, count) different ones of `size`, without the own one of each row (n,)."""
    # Steps from the own one round the ring of all: it is never drawn itself, and none is taken twice.
    steps = np.zeros((len(own), count), dtype=np.int64)
    for column in range(count):
        step = draw.integers(0, size - 1 - column, len(own))
        for taken in np.sort(steps[:, :column], axis=1).T:
            step += step >= taken
        steps[:, column] = step
    found: IntArray = (own[:, None] + 1 + steps) % size
    return found


def _numbered(texts: list[str]) -> IntArray:
    """(n,): equal texts have one number below n."""
    found: IntArray = pa.array(texts, pa.string()).dictionary_encode().indices.to_numpy().astype(np.int64)
    return found


def _one_each(places: IntArray, of: IntArray, count: int, draw: np.random.Generator) -> IntArray:
    """One place each of `count` drawn owners, (count,); -1 where there are fewer. `of` are the places' owners."""
    owners = np.unique(of)
    if len(owners) < count:
        return np.full(count, NONE, dtype=np.int64)
    chosen = draw.choice(owners, count, replace=False)
    return np.array([draw.choice(places[of == owner]) for owner in chosen], dtype=np.int64)
