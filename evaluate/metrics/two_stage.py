"""Retrieval in two stages: candidates by the unedited images' cosine, then the exact score of these alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlpipe.evaluate.contracts import Inputs, IntArray, Rows
from vlpipe.evaluate.edits import Edits
from vlpipe.evaluate.metrics.retrieval import I2T, NAMES, T2I
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.heads.ranks import Direction, ranks

Array = npt.NDArray[Any]
STEP = 256  # queries whose candidates are looked for at once


class TwoStage:
    """Of each query the `candidates` best by plain cosine are scored exactly; the rest are out of reach.

    Numbers (shares, ties against the query): `i2t_recall@K` and `t2i_recall@K` of the two stages, `..._exact` of
    scoring every pair, `..._coarse` of the first stage alone, `..._reached` of queries with a match among their
    candidates, and `..._drop`, what the short cut costs: exact minus two-stage.
    """

    def __init__(self, ks: Sequence[int], candidates: int) -> None:
        self.ks = tuple(ks)
        self.candidates = candidates
        if max(self.ks) > candidates or min(self.ks) < 1:
            raise UsageError(f"ks = {list(ks)}: expected numbers from 1 to candidates = {candidates}")

    def rows(self, inputs: Inputs) -> Rows:
        """One row a query: `direction`, and its rank by stage: `rank`, `exact`, `coarse`, 0 out of reach.

        Raises `VlpipeError` for a head that does not edit, or a gallery smaller than the candidates.
        """
        edits = inputs.edits
        if edits is None:
            raise VlpipeError(
                "this head does not edit images, so one stage does; expected a tevi or smartclip run"
            )
        smaller = min(len(inputs.image_ids), len(inputs.text_ids))
        if self.candidates > smaller:
            raise VlpipeError(
                f"{self.candidates} candidates of a gallery of {smaller}: choose --set candidates=..."
            )
        every = np.arange(len(inputs.image_ids)), np.arange(len(inputs.text_ids))
        plain = edits.original(every[0]), edits.texts(every[1])
        exact = ranks(inputs.scores, inputs.text_image, len(inputs.image_ids))
        coarse = ranks(lambda i, t: plain[0][i] @ plain[1][t].T, inputs.text_image, len(inputs.image_ids))
        parts = []
        for direction, full, first in ((I2T, exact.i2t, coarse.i2t), (T2I, exact.t2i, coarse.t2i)):
            parts.append(self._direction(inputs, edits, plain, direction, full, first))
        ids = [np.array(inputs.image_ids, dtype=object)[exact.i2t.query]]
        ids.append(np.array(inputs.text_ids, dtype=object)[exact.t2i.query])
        images = [exact.i2t.query, inputs.text_image[exact.t2i.query]]
        values = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return Rows(np.concatenate(ids), np.concatenate(images), values)

    def _direction(
        self,
        inputs: Inputs,
        edits: Edits,
        plain: tuple[Tensor, Tensor],
        direction: int,
        exact: Direction,
        coarse: Direction,
    ) -> dict[str, Array]:
        """Columns of one direction's queries."""
        query = exact.query
        found = np.zeros(len(query), dtype=np.int64)
        ask, gallery = plain if direction == I2T else plain[::-1]
        for start in range(0, len(query), STEP):
            rows = query[start : start + STEP]
            near = (ask[torch.from_numpy(rows)] @ gallery.T).topk(self.candidates, dim=1).indices.numpy()
            asked = np.repeat(rows, self.candidates)
            images, texts = (asked, near.ravel()) if direction == I2T else (near.ravel(), asked)
            scores = inputs.pairs(images, texts).numpy().reshape(near.shape)
            match = (inputs.text_image[texts] == images).reshape(near.shape)
            found[start : start + STEP] = ranks_among(scores, match)
        return {
            "direction": np.full(len(query), direction, dtype=np.int8),
            "rank": found,
            "exact": exact.pessimistic,
            "coarse": coarse.pessimistic,
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


def ranks_among(scores: Array, match: Array) -> IntArray:
    """Rank of each query's best match among its candidates, (queries, candidates) each: (queries,), 0 without."""
    best = np.where(match, scores, -np.inf).max(axis=1)
    above = (~match & (scores >= best[:, None])).sum(axis=1)
    found: IntArray = np.where(np.isfinite(best), above + 1, 0).astype(np.int64)
    return found
