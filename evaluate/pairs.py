"""Which image goes with which text, and with which hard negative of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vlpipe.evaluate.contracts import Inputs, IntArray
from vlpipe.heads.tables import BoolArray, TextsByOwner

Per = Literal["image", "text"]
SOURCE = "source_text_id"


@dataclass(frozen=True)
class Pairs:
    """Positions of images, of a caption of each, and of a hard negative of that caption: (pairs,) each.

    There are no `negatives` where no caption has one.
    """

    images: IntArray
    texts: IntArray
    negatives: IntArray | None


def pairs_of(inputs: Inputs, per: Per, where: Mapping[str, Sequence[str]], seed: int) -> Pairs:
    """One pair an image, with a drawn caption, or one a caption, whose image is then there several times.

    `where`: only texts whose attribute is one of the values. Where any caption left has a hard negative, only
    those that have one take part, so that matches and hard non-matches are of the same images.
    """
    role = np.array(inputs.columns["role"], dtype=np.str_)
    allowed = _allowed(inputs, where)
    captions = allowed & (role == "caption") & (inputs.text_image >= 0)
    places = {text_id: place for place, text_id in enumerate(inputs.text_ids)}
    sources = np.array([places.get(name, -1) for name in inputs.columns[SOURCE]], dtype=np.int64)
    negatives = TextsByOwner(sources, allowed & (role == "hard_negative"), len(role))
    has = captions & negatives.have()
    if has.any():
        captions = has
    texts = np.flatnonzero(captions)
    if per == "image":
        by_image = TextsByOwner(inputs.text_image, captions, len(inputs.image_ids))
        texts = by_image.drawn(np.flatnonzero(by_image.have()), 1, seed, 0)[:, 0]
    drawn = negatives.drawn(texts, 1, seed, 0)[:, 0] if has.any() else None
    return Pairs(inputs.text_image[texts], texts, drawn)


def _allowed(inputs: Inputs, where: Mapping[str, Sequence[str]]) -> BoolArray:
    described: Sequence[Mapping[str, str]] = inputs.columns["attributes"]
    return np.array([all(one.get(name) in values for name, values in where.items()) for one in described], bool)
