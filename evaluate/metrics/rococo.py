"""How often an altered caption draws an image away from its own (RoCOCO, image-to-text)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vlpipe.evaluate.choices import blocks_of, tie_of
from vlpipe.evaluate.contracts import Inputs, Rows
from vlpipe.foundation.errors import VlpipeError

Array = npt.NDArray[Any]
STEP = 1024  # rows of a block of scores
FIRST, HIT, FOOLED = "first", "hit:", "fooled:"


class Rococo:
    """Recall@1 among all captions, and once more with the altered captions of one kind added to them.

    Numbers (shares): `i2t_recall@1`; of each kind, `i2t_recall@1:KIND` with it in the gallery, `drop:KIND` their
    difference, `relative_drop:KIND` that over the first, and `rsms:KIND`, the images whose top text is an altered
    one. Ties count against the image.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = list(kinds)

    def rows(self, inputs: Inputs) -> Rows:
        """One row an image with a caption: `first`, and `hit:KIND` and `fooled:KIND` of the kinds that there are.

        Raises `VlpipeError` when there are none, `NonFiniteScoresError` for scores that are not finite.
        """
        roles = np.array(inputs.columns["role"], dtype=object)
        kinds = [kind for kind in self.kinds if (roles == kind).any()]
        if not kinds:
            raise VlpipeError(
                f"no text of the split has a role of {', '.join(self.kinds)}; evaluate on a manifest that has "
                "some, from `vlpipe manifest build rococo`, or from `vlpipe manifest negatives` with "
                "--set 'kinds=[\"hard_negative\"]' here"
            )
        own, other, altered = self._best(inputs, roles, kinds)
        there = np.flatnonzero(np.isfinite(own))
        own, other = own[there], other[there]
        values: dict[str, Array] = {FIRST: own > other}
        for kind in kinds:
            wrong = altered[kind][there]
            values[HIT + kind] = own > np.maximum(other, wrong)
            values[FOOLED + kind] = wrong >= np.maximum(own, other)
        return Rows(np.array(inputs.image_ids, dtype=object)[there], there, values)

    def _best(
        self, inputs: Inputs, roles: Array, kinds: Sequence[str]
    ) -> tuple[Array, Array, Mapping[str, Array]]:
        """By image: its best own caption, the best other one, and the best altered text of each kind.

        Scores of others are lifted by what counts as a tie.
        """
        caption, tie = roles == "caption", 0.0
        best = {name: np.full(len(inputs.image_ids), -np.inf) for name in ("own", "other", *kinds)}
        for rows, columns, scores in blocks_of(inputs, STEP):
            tie = max(tie, tie_of(scores))
            mine = inputs.text_image[None, columns] == np.arange(rows.start, rows.stop)[:, None]
            chosen = {"own": mine & caption[columns], "other": ~mine & caption[columns]}
            chosen |= {kind: np.broadcast_to(roles[columns] == kind, mine.shape) for kind in kinds}
            for name, which in chosen.items():
                found = np.where(which, scores, -np.inf).max(axis=1)
                best[name][rows] = np.maximum(best[name][rows], found)
        return best["own"], best["other"] + tie, {kind: best[kind] + tie for kind in kinds}

    def summarise(self, rows: Rows) -> dict[str, float]:
        """All numbers that the rows define."""
        if not len(rows):
            return {}
        first = float(rows.values[FIRST].mean())
        found = {"i2t_recall@1": first}
        for column, values in rows.values.items():
            if not column.startswith(HIT):
                continue
            kind, recall = column.removeprefix(HIT), float(values.mean())
            found |= {f"i2t_recall@1:{kind}": recall, f"drop:{kind}": first - recall}
            found |= {f"relative_drop:{kind}": (first - recall) / first} if first else {}
            found[f"rsms:{kind}"] = float(rows.values[FOOLED + kind].mean())
        return found

    def counts(self, rows: Rows) -> dict[str, int]:
        """Images behind each number."""
        return dict.fromkeys(self.summarise(rows), len(rows))
