"""Whether a latent tells its own attribute value from all others, and nothing else (TEVI, Figs. 3, A3, A4)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vlpipe.evaluate.concepts import UNKNOWN, Concepts
from vlpipe.evaluate.contracts import Inputs, IntArray, NothingToScoreError, Rows

Array = npt.NDArray[Any]
LATENT, TRUTH = "latent:", "truth:"
STEP = 4096  # images at once


class Specificity:
    """Area under the ROC curve (AUC) of activations, for images with a value against those without.

    A concept's latent is the one nearest to it. Numbers: `auc_own:VALUE` of a value's latent for the value, their
    mean `auc_own` and least `auc_own_least`; over all pairs of a latent and a value of another attribute the mean
    `auc_unrelated`, least and most. A value that all images have, or none, is left out.
    """

    resampled: ClassVar[bool] = False  # 26 x 26 curves a draw; the spread over seeds tells more

    def rows(self, inputs: Inputs) -> Rows:
        """One row an image: `latent:ATTRIBUTE:VALUE` activations, and `truth:ATTRIBUTE`, the place of its value.

        Raises `NothingToScoreError` for a head without latents.
        """
        concepts = Concepts.of(inputs)
        edits = inputs.edits
        owners = None if edits is None else edits.owners(concepts.prompts)
        if edits is None or owners is None:
            raise NothingToScoreError(
                "this head has no latents; expected a tevi run (--set 'mask=\"none\"' edits nothing)"
            )
        images = np.arange(len(inputs.image_ids), dtype=np.int64)
        parts = [images[start : start + STEP] for start in range(0, len(images), STEP)]
        activations = np.concatenate([edits.activations(part).numpy()[:, owners] for part in parts])
        values: dict[str, Array] = {
            f"{LATENT}{concepts.attributes[a]}:{value}": activations[:, n]
            for n, (a, value) in enumerate(zip(concepts.attribute, concepts.values, strict=True))
        }
        for n, name in enumerate(concepts.attributes):
            own = concepts.truth[:, n] - int(np.flatnonzero(concepts.attribute == n)[0])
            values[TRUTH + name] = np.where(concepts.truth[:, n] == UNKNOWN, UNKNOWN, own)
        return Rows(np.array(inputs.image_ids, dtype=object), images, values)

    def summarise(self, rows: Rows) -> dict[str, float]:
        """All numbers that the rows define."""
        latents, areas = self.areas(rows)
        order = [name.partition(":")[0] for name in latents]
        own = {f"auc_own:{name}": float(areas[n, n]) for n, name in enumerate(latents)}
        found = {name: value for name, value in own.items() if np.isfinite(value)}
        if found:
            found |= {"auc_own": float(np.mean(list(found.values()))), "auc_own_least": min(found.values())}
        other = areas[np.array(order)[:, None] != np.array(order)[None, :]]
        other = other[np.isfinite(other)]
        if len(other):
            found["auc_unrelated"] = float(other.mean())
            found |= {"auc_unrelated_least": float(other.min()), "auc_unrelated_most": float(other.max())}
        return found

    def areas(self, rows: Rows) -> tuple[list[str], Array]:
        """The values, `ATTRIBUTE:VALUE`, and the AUC of each value's latent for each of them, (values, values)."""
        latents = [name.removeprefix(LATENT) for name in rows.values if name.startswith(LATENT)]
        return latents, np.stack([self._areas(rows, name, latents) for name in latents])

    def _areas(self, rows: Rows, latent: str, values: list[str]) -> Array:
        """AUC of one latent for every value, (values,), NaN where all images have it, or none."""
        ranks = average_ranks(rows.values[LATENT + latent])
        found = []
        seen: dict[str, int] = {}
        for name in values:
            attribute = name.partition(":")[0]
            place = seen[attribute] = seen.get(attribute, -1) + 1
            truth = rows.values[TRUTH + attribute]
            found.append(area(ranks[truth != UNKNOWN], truth[truth != UNKNOWN] == place))
        return np.array(found)

    def counts(self, rows: Rows) -> dict[str, int]:
        """Images behind each number."""
        return dict.fromkeys(self.summarise(rows), len(rows))


def average_ranks(values: Array) -> Array:
    """Ranks from 1 in rising order, (n,); equal values share their mean rank."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    means: Array = (last - (count - 1) / 2)[place]
    return means


def area(ranks: Array, positive: IntArray | Array) -> float:
    """AUC from ranks (n,) and which rows are positive (n,), ties half: Mann and Whitney's U over its maximum.

    Ranks need not begin at 1 where rows were left out. NaN without a positive, or without a negative.
    """
    ranks = average_ranks(ranks)
    n = int(positive.sum())
    if not n or n == len(ranks):
        return float("nan")
    u = float(ranks[positive].sum()) - n * (n + 1) / 2
    return u / (n * (len(ranks) - n))
