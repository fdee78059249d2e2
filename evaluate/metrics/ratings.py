"""Whether scores of images and texts order them as people do (Kendall's rank correlation)."""

from __future__ import annotations

import numpy as np

from vlpipe.evaluate.choices import Array, levels, scores_of
from vlpipe.evaluate.contracts import Inputs, IntArray, Rows
from vlpipe.evaluate.judgments import Judgments
from vlpipe.foundation.errors import VlpipeError

SCORE = "score"
CELLS = 1 << 20  # of a table of pairs of values at once
FLAT = ("tau_b_flat", "tau_c_flat")


class Ratings:
    """Kendall's tau between a head's scores of pairs and their ratings.

    Numbers: `tau_b` and `tau_c` with the mean rating of a pair, `tau_b_flat` and `tau_c_flat` with every rating a
    row of its own (as captioning metrics report it), and `tau_b:RATER`, `tau_c:RATER`. Equal scores are ties, and
    where all scores or all ratings are equal there is no number. Tau-b counts ties out, tau-c divides by the most
    that so many different ratings allow.
    """

    def __init__(self, judgments: Judgments, own: bool = False) -> None:
        self.judgments = judgments
        self.own = own

    def rows(self, inputs: Inputs) -> Rows:
        """One row a pair, under its image: `score`, as levels from 0 of scores that differ, and a column a rater.

        Pairs whose image or text is not among the inputs are left out, and without `own` an image's own captions.
        Raises `VlpipeError` where none is left, `NonFiniteScoresError` for scores that are not finite.
        """
        chosen, images, texts = self.found(inputs)
        if not len(chosen):
            first = self.judgments.pairs[0]
            raise VlpipeError(
                f"none of the {len(self.judgments.pairs)} rated pairs takes part, for example image "
                f"'{first.image_id}' with text '{first.text_id}'; expected ids of this split, and others than an "
                "image with its own caption (these take --set own=true)"
            )
        ratings = np.array([self.judgments.pairs[n].ratings for n in chosen])
        values: dict[str, Array] = {SCORE: levels(scores_of(inputs, images, texts))}
        values |= {name: ratings[:, column] for column, name in enumerate(self.judgments.raters)}
        return Rows(np.array(inputs.text_ids, dtype=object)[texts], images, values)

    def found(self, inputs: Inputs) -> tuple[IntArray, IntArray, IntArray]:
        """Which pairs take part, and the positions of their images and texts."""
        image_at = {name: place for place, name in enumerate(inputs.image_ids)}
        text_at = {name: place for place, name in enumerate(inputs.text_ids)}
        both = [
            (n, image_at[pair.image_id], text_at[pair.text_id])
            for n, pair in enumerate(self.judgments.pairs)
            if pair.image_id in image_at and pair.text_id in text_at
        ]
        rows = np.array(both, dtype=np.int64).reshape(-1, 3)
        if not self.own:
            rows = rows[inputs.text_image[rows[:, 2]] != rows[:, 1]]
        return rows[:, 0], rows[:, 1], rows[:, 2]

    def summarise(self, rows: Rows) -> dict[str, float]:
        """All numbers that the rows define."""
        scores = rows.values[SCORE]
        raters = {name: values for name, values in rows.values.items() if name != SCORE}
        if not len(scores):
            return {}
        parts: dict[str, tuple[Array, Array]] = {
            "": (scores, np.mean(list(raters.values()), axis=0)),
            "_flat": (np.tile(scores, len(raters)), np.concatenate(list(raters.values()))),
        }
        parts |= {f":{name}": (scores, values) for name, values in raters.items()} if len(raters) > 1 else {}
        found: dict[str, float] = {}
        for name, (left, right) in parts.items():
            both = taus(left, right)
            found |= {} if both is None else {f"tau_b{name}": both[0], f"tau_c{name}": both[1]}
        return found

    def counts(self, rows: Rows) -> dict[str, int]:
        """Pairs behind each number; of a flat one, ratings."""
        raters = len(rows.values) - 1
        return {name: len(rows) * (raters if name in FLAT else 1) for name in self.summarise(rows)}


def taus(left: Array, right: Array) -> tuple[float, float] | None:
    """Kendall's tau-b and tau-c of two columns (n,); None where one of them has a single value."""
    kinds = min(len(np.unique(left)), len(np.unique(right)))
    if kinds < 2:
        return None
    more, n = surplus(left, right), len(left)
    pairs = n * (n - 1) / 2
    b = more / np.sqrt((pairs - _tied(left)) * (pairs - _tied(right)))
    return float(b), 2 * more * kinds / (n**2 * (kinds - 1))


def surplus(left: Array, right: Array) -> int:
    """Pairs of rows that both columns (n,) order alike, less those that they order in opposite ways.

    From the table of how often each pair of values occurs, some values of the left column at a time.
    """
    _, x = np.unique(left, return_inverse=True)
    _, y = np.unique(right, return_inverse=True)
    height, width, found = int(x.max()) + 1, int(y.max()) + 1, 0
    step = min(height, max(1, CELLS // width))
    below = np.zeros(width, dtype=np.int64)  # rows of a smaller left value, by right value
    for start in range(0, height, step):
        own = (x >= start) & (x < start + step)
        table = np.bincount((x[own] - start) * width + y[own], minlength=step * width).reshape(step, width)
        smaller = below + np.cumsum(table, axis=0) - table
        under = np.cumsum(smaller, axis=1) - smaller
        over = smaller.sum(axis=1, keepdims=True) - smaller - under
        found += int((table * (under - over)).sum())
        below += table.sum(axis=0)
    return found


def _tied(column: Array) -> float:
    """Pairs of equal values."""
    _, counts = np.unique(column, return_counts=True)
    return float((counts * (counts - 1) / 2).sum())
