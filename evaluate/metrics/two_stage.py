"""Retrieval in two stages: candidates by the unedited images' cosine, then the exact score of these alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlpipe.evaluate.contracts import Inputs, IntArray, NothingToScoreError, Rows
from vlpipe.evaluate.metrics.retrieval import I2T, NAMES, T2I
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.heads.ranks import TIE_EPS, Ranks, Scores, ranks

Array = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
Ranked = tuple[Ranks, float]
STEP = 256  # queries whose candidates are looked for at once


class TwoStage:
    """Of each query the `candidates` best by plain cosine are scored exactly; the rest are out of reach.

    Ties count against the query in both stages: a match comes after all that ties with its cosine, and of what
    ties with the last candidate those count whose exact scores are highest. For that all of it is scored exactly,
    pair by pair: where most cosines of a query are equal, nearly the whole gallery, and nothing is saved.

    Numbers (shares): `i2t_recall@K` and `t2i_recall@K` of the two stages, `..._exact` of scoring every
    pair, `..._coarse` of the first stage alone, `..._reached` of queries with a match among their candidates, and
    `..._drop`, what the short cut costs: exact minus two-stage.
    """

    def __init__(self, ks: Sequence[int], candidates: int) -> None:
        self.ks = tuple(ks)
        self.candidates = candidates
        if not self.ks or max(self.ks) > candidates or min(self.ks) < 1:
            raise UsageError(f"ks = {list(ks)}: expected numbers from 1 to candidates = {candidates}")

    def rows(self, inputs: Inputs) -> Rows:
        """One row a query: `direction`, and its rank by stage: `rank`, `exact`, `coarse`, 0 out of reach.

        Raises `NothingToScoreError` for a head that does not edit, `VlpipeError` for fewer rows than candidates.
        """
        edits = inputs.edits
        if edits is None:
            raise NothingToScoreError(
                "this head does not edit images, so one stage does; expected a tevi or smartclip run"
            )
        smaller = min(len(inputs.image_ids), len(inputs.text_ids))
        if self.candidates > smaller:
            raise VlpipeError(
                f"{self.candidates} candidates of a gallery of {smaller}: choose --set candidates=..."
            )
        every = np.arange(len(inputs.image_ids)), np.arange(len(inputs.text_ids))
        plain = edits.original(every[0]), edits.texts(every[1])
        owner, count = inputs.text_image, len(inputs.image_ids)
        exact = ranked(inputs.scores, owner, count)
        coarse = ranked(lambda i, t: plain[0][i] @ plain[1][t].T, owner, count)
        parts = [self._direction(inputs, plain, direction, exact, coarse) for direction in (I2T, T2I)]
        ids = [np.array(inputs.image_ids, dtype=object)[exact[0].i2t.query]]
        ids.append(np.array(inputs.text_ids, dtype=object)[exact[0].t2i.query])
        images = [exact[0].i2t.query, inputs.text_image[exact[0].t2i.query]]
        values = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return Rows(np.concatenate(ids), np.concatenate(images), values)

    def _direction(
        self, inputs: Inputs, plain: tuple[Tensor, Tensor], direction: int, exact: Ranked, coarse: Ranked
    ) -> dict[str, Array]:
        """Columns of one direction's queries."""
        full, first = (found.i2t if direction == I2T else found.t2i for found, _ in (exact, coarse))
        found = np.zeros(len(full.query), dtype=np.int64)
        ask, gallery = plain if direction == I2T else plain[::-1]
        owner, every = inputs.text_image, np.arange(len(inputs.image_ids))
        for start in range(0, len(found), STEP):
            rows = full.query[start : start + STEP]
            cosines = (ask[torch.from_numpy(rows)] @ gallery.T).numpy()
            owners, own = (owner, rows) if direction == I2T else (every, owner[rows])
            match = owners == own[:, None]
            sure, tied, places = shortlist(cosines, match, self.candidates, coarse[1])
            asked, near = np.nonzero(sure | tied)
            pairs = (rows[asked], near) if direction == I2T else (near, rows[asked])
            scores = np.full(match.shape, -np.inf)
            scores[asked, near] = inputs.pairs(*pairs).numpy()
            found[start : start + STEP] = ranks_among(scores, match, sure, places, exact[1])
        return {
            "direction": np.full(len(found), direction, dtype=np.int8),
            "rank": found,
            "exact": full.pessimistic,
            "coarse": first.pessimistic,
        }

    def summarise(self, rows: Rows) -> dict[str, float]:
        """All numbers that the rows define."""
        found: dict[str, float] = {}
        for direction, name in NAMES.items():
            asked = rows.values["direction"] == direction
            if not asked.any():
                continue
            rank, exact, coarse = (rows.values[column][asked] for column in ("rank", "exact", "coarse"))
            found[f"{name}_recall_reached"] = float((rank > 0).mean())
            for k in self.ks:
                two, one = float(((rank > 0) & (rank <= k)).mean()), float((exact <= k).mean())
                found |= {f"{name}_recall@{k}": two, f"{name}_recall@{k}_exact": one}
                found |= {f"{name}_recall@{k}_coarse": float((coarse <= k).mean())}
                found[f"{name}_recall@{k}_drop"] = one - two
        return found

    def counts(self, rows: Rows) -> dict[str, int]:
        """Queries behind each number."""
        asked = {name: int((rows.values["direction"] == direction).sum()) for direction, name in NAMES.items()}
        return {number: asked[number.partition("_")[0]] for number in self.summarise(rows)}


def ranked(scores: Scores, text_image: IntArray, images: int) -> Ranked:
    """Exact ranks, and how close two scores are that are tied there."""
    largest = eps = 0.0

    def seen(rows: slice, columns: slice) -> Tensor:
        """A block of scores, whose largest is kept."""
        nonlocal largest, eps
        block = scores(rows, columns)
        largest, eps = max(largest, float(block.abs().max())), max(eps, torch.finfo(block.dtype).eps)
        return block

    found = ranks(seen, text_image, images)
    return found, TIE_EPS * eps * largest


def shortlist(
    cosines: Array, match: BoolArray, candidates: int, tie: float
) -> tuple[BoolArray, BoolArray, IntArray]:
    """Of each query, (queries, gallery): what is a candidate for sure, what else ties with the last candidate, and
    for how many of these there is a place, (queries,).

    A match is one only after all others that are at most `tie` below it.
    """
    least = np.where(match, np.nextafter(cosines - tie, -np.inf), cosines)
    values, near = torch.from_numpy(least).topk(candidates, dim=1)
    over = cosines - values[:, -1:].numpy()  # the last candidate
    sure = np.zeros_like(match)
    np.put_along_axis(sure, near.numpy(), True, axis=1)
    sure &= match | (over > tie)
    tied = ~match & (np.abs(over) <= tie)
    return sure, tied, candidates - sure.sum(axis=1)


def ranks_among(scores: Array, match: BoolArray, sure: BoolArray, places: IntArray, tie: float) -> IntArray:
    """Worst rank of each query's best match among its candidates, (queries,), 0 without.

    `scores` (queries, gallery) is -inf for what is no candidate. Besides the `sure` ones at most `places`
    (queries,) of the others are candidates.
    """
    best = np.where(match, scores, -np.inf).max(axis=1)
    above = ~match & (scores >= best[:, None] - tie)
    others = np.minimum((above & ~sure).sum(axis=1), places)
    found: IntArray = np.where(np.isfinite(best), 1 + (above & sure).sum(axis=1) + others, 0).astype(np.int64)
    return found
