"""The caption that an image scores highest: whether it is the image's own, and whether it is true of it.

Where captions leave much out, as MAD's do, several of them are true of an image, and a recall counts only its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from vlpipe.evaluate.choices import Array, blocks_of, named, tie_of
from vlpipe.evaluate.contracts import Inputs, IntArray, Rows

STEP = 1024  # rows of a block of scores
UNKNOWN = -1
OWN, OTHER, TRUE, FALSE = "own", "other", "true", "false"


class TopCaptions:
    """Numbers (shares of images, ties count against them): `i2t_recall@1`, the top caption is the image's own, and
    `true_recall@1`, it is one of the images' own or says nothing that the image's attributes do not bear out.

    A caption says those values of its own image's attributes that are among its words. One that says none, or that
    is no image's, is not taken for true; images without attributes have no `true_recall@1`.
    """

    def rows(self, inputs: Inputs) -> Rows:
        """One row an image with a caption: `right`, bool, `true`, 1, 0 or -1 for unknown, and `top`, a text's id.

        Raises `NonFiniteScoresError` for scores that are not finite.
        """
        said = Said.of(inputs)
        best, tie = _best(inputs, said)
        asked = np.flatnonzero(np.isfinite(best[OWN].score))
        own, other = best[OWN], best[OTHER]
        right = own.score > other.score + tie
        true = np.where(said.known, best[TRUE].score > best[FALSE].score + tie, UNKNOWN)
        top = np.where(right, own.text, other.text)[asked]
        return Rows(
            np.array(inputs.image_ids, dtype=object)[asked],
            asked,
            {
                "right": right[asked],
                "true": true[asked].astype(np.int8),
                "top": named([inputs.text_ids[place] for place in top]),
            },
        )

    def summarise(self, rows: Rows) -> dict[str, float]:
        """All numbers that the rows define."""
        if not len(rows):
            return {}
        found = {"i2t_recall@1": float(rows.values["right"].mean())}
        known = rows.values["true"] != UNKNOWN
        return found | ({"true_recall@1": float(rows.values["true"][known].mean())} if known.any() else {})

    def counts(self, rows: Rows) -> dict[str, int]:
        """Images behind each number."""
        sizes = {"i2t_recall@1": len(rows), "true_recall@1": int((rows.values["true"] != UNKNOWN).sum())}
        return {name: sizes[name] for name in self.summarise(rows)}


@dataclass(frozen=True)
class Said:
    """Values as numbers, by attribute: `has` (images, attributes) what an image has, `says` (texts, attributes)
    what a caption says; -1 for nothing. `known` (images,): whether an image has attributes.
    """

    has: IntArray
    says: IntArray
    known: Array

    @classmethod
    def of(cls, inputs: Inputs) -> Said:
        """From the images' "attributes" and the texts' "text"."""
        described: Sequence[Mapping[str, str]] = inputs.image_columns["attributes"]
        names = sorted({name for one in described for name in one})
        numbers: dict[tuple[str, str], int] = {}
        has = np.full((len(described), len(names)), UNKNOWN, dtype=np.int64)
        for image, one in enumerate(described):
            for column, name in enumerate(names):
                if name in one:
                    has[image, column] = numbers.setdefault((name, one[name]), len(numbers))
        says = np.full((len(inputs.text_ids), len(names)), UNKNOWN, dtype=np.int64)
        for place, (text, image) in enumerate(zip(inputs.columns["text"], inputs.text_image, strict=True)):
            for column, name in enumerate(names) if image >= 0 else ():
                value = described[image].get(name)
                if value is not None and _pattern(value).search(text):
                    says[place, column] = has[image, column]
        return cls(has, says, np.array([bool(one) for one in described], dtype=np.bool_))

    def true(self, images: slice, texts: slice) -> Array:
        """Whether a text says something and nothing that an image has not, (images, texts)."""
        says = self.says[None, texts]
        fits = ((says == UNKNOWN) | (says == self.has[images, None])).all(axis=2)
        found: Array = fits & (says != UNKNOWN).any(axis=2)
        return found


@lru_cache(maxsize=4096)
def _pattern(value: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(value)}(?!\w)", re.IGNORECASE)


@dataclass
class Best:
    """Each image's highest score among some texts, and the first text that has it: (images,) each."""

    score: Array
    text: IntArray = field(init=False)

    def __post_init__(self) -> None:
        self.text = np.full(len(self.score), UNKNOWN, dtype=np.int64)

    def see(self, rows: slice, scores: Array, start: int) -> None:
        """Take in a block (images, texts), -inf where a text does not count."""
        place = scores.argmax(axis=1)
        found = scores[np.arange(len(scores)), place]
        higher = found > self.score[rows]
        self.score[rows] = np.where(higher, found, self.score[rows])
        self.text[rows] = np.where(higher, place + start, self.text[rows])


def _best(inputs: Inputs, said: Said) -> tuple[dict[str, Best], float]:
    """By kind of text, and how far apart scores may lie and still be equal."""
    best = {name: Best(np.full(len(inputs.image_ids), -np.inf)) for name in (OWN, OTHER, TRUE, FALSE)}
    tie = 0.0
    for rows, columns, scores in blocks_of(inputs, STEP):
        tie = max(tie, tie_of(scores))
        own = inputs.text_image[None, columns] == np.arange(rows.start, rows.stop)[:, None]
        true = own | said.true(rows, columns)
        for name, which in ((OWN, own), (OTHER, ~own), (TRUE, true), (FALSE, ~true)):
            best[name].see(rows, np.where(which, scores, -np.inf), columns.start)
    return best, tie
