"""Choosing the true text of an image among false ones: which texts stand against a caption, and which it beats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vlpipe.evaluate.contracts import Inputs, IntArray, Rows
from vlpipe.heads.ranks import TIE_EPS, NonFiniteScoresError

if TYPE_CHECKING:
    from torch import Tensor

Array = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
SOURCE = "source_text_id"


def false_texts(inputs: Inputs, is_false: Callable[[str], bool]) -> tuple[IntArray, IntArray]:
    """Texts whose role is a false one and that were made from a caption of the same image, and these captions.

    Positions, (n,) each, in manifest order; reads the columns "role" and "source_text_id".
    """
    roles = inputs.columns["role"]
    captions = {
        name: place
        for place, (name, role) in enumerate(zip(inputs.text_ids, roles, strict=True))
        if role == "caption" and inputs.text_image[place] >= 0
    }
    found = [
        (place, captions[source])
        for place, (role, source) in enumerate(zip(roles, inputs.columns[SOURCE], strict=True))
        if is_false(role)
        and source in captions
        and inputs.text_image[captions[source]] == inputs.text_image[place]
    ]
    both = np.array(found, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def scores_of(inputs: Inputs, images: IntArray, texts: IntArray) -> Array:
    """Scores of pairs, (n,). Raises `NonFiniteScoresError` that names the pairs' rows."""
    found: Tensor = inputs.pairs(images, texts)
    scores: Array = found.cpu().numpy()
    bad = ~np.isfinite(scores)
    if bad.any():
        rows = np.unique(images[bad]).tolist(), np.unique(texts[bad]).tolist()
        raise NonFiniteScoresError(*rows, inputs.image_ids, inputs.text_ids)
    return scores


def blocks_of(inputs: Inputs, step: int) -> Iterator[tuple[slice, slice, Array]]:
    """All scores in blocks of `step` images and texts at most: which, and (images, texts).

    Raises `NonFiniteScoresError` that names the rows.
    """
    for i in range(0, len(inputs.image_ids), step):
        images = slice(i, min(i + step, len(inputs.image_ids)))
        for t in range(0, len(inputs.text_ids), step):
            texts = slice(t, min(t + step, len(inputs.text_ids)))
            scores: Array = inputs.scores(images, texts).cpu().numpy()
            bad = np.argwhere(~np.isfinite(scores))
            if len(bad):
                rows = np.unique(bad[:, 0] + images.start).tolist(), np.unique(bad[:, 1] + texts.start).tolist()
                raise NonFiniteScoresError(*rows, inputs.image_ids, inputs.text_ids)
            yield images, texts, scores


def tie_of(*scores: Array) -> float:
    """How far apart scores may lie and still be equal, as in `vlpipe.heads.ranks`."""
    largest = max((float(np.abs(part).max()) for part in scores if part.size), default=0.0)
    return TIE_EPS * max(float(np.finfo(part.dtype).eps) for part in scores) * largest


def levels(scores: Array) -> IntArray:
    """Scores (n,) as whole numbers from 0 in rising order, ties as one: what a rank correlation may look at."""
    order = np.argsort(scores, kind="stable")
    steps = np.diff(scores[order], prepend=scores[order][:1]) > tie_of(scores)
    found = np.zeros(len(scores), dtype=np.int64)
    found[order] = np.cumsum(steps)
    return found


def shares(hits: BoolArray, names: Array, least: int = 1) -> dict[str, tuple[float, int]]:
    """By name: the share of its rows that are hits, and their number; names with fewer than `least` are left out.

    `names` (n,) are texts, None for a row of no name.
    """
    encoded = pa.array(names, pa.string()).dictionary_encode()
    known = encoded.indices.is_valid().to_numpy(zero_copy_only=False)
    codes = encoded.indices.fill_null(0).to_numpy()[known]
    found: Sequence[str] = encoded.dictionary.to_pylist()
    counts = np.bincount(codes, minlength=len(found))
    right = np.bincount(codes, weights=hits[known], minlength=len(found))
    return {
        name: (float(right[n] / counts[n]), int(counts[n]))
        for n, name in sorted(enumerate(found), key=lambda one: one[1])
        if counts[n] >= max(1, least)
    }


def named(values: Collection[str | None]) -> Array:
    """A column of texts or None, (n,)."""
    column = np.empty(len(values), dtype=object)
    column[:] = list(values)
    return column


class Counted(ABC):
    """A metric each of whose numbers stands on rows of its own."""

    @abstractmethod
    def numbers(self, rows: Rows) -> Mapping[str, tuple[float, int]]:
        """By name: a number that the rows define, and how many rows stand behind it."""

    def summarise(self, rows: Rows) -> dict[str, float]:
        """All numbers that the rows define."""
        return {name: value for name, (value, _) in self.numbers(rows).items()}

    def counts(self, rows: Rows) -> dict[str, int]:
        """How many rows stand behind each number."""
        return {name: count for name, (_, count) in self.numbers(rows).items()}
