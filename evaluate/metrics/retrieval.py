"""Recall, median rank and sensitivity to the choice of caption, from exact ranks both ways."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vlpipe.evaluate.contracts import Inputs, IntArray, Rows
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.heads.ranks import Direction, NonFiniteScoresError, ranks

I2T, T2I = 0, 1
NAMES = {I2T: "i2t", T2I: "t2i"}


class Retrieval:
    """Image-to-text: a hit is any of the image's captions in the top K; text-to-image: the one image.

    Numbers (recalls are shares in [0, 1], ranks are 1-based; ties count against the query, and the names that
    end in `_optimistic` are the other bound):
    - `i2t_recall@K`, `t2i_recall@K`, `i2t_median_rank`, `t2i_median_rank`;
    - `mean_caption_recall@K`: text-to-image recall averaged over an image's captions, then over images;
    - `worst_caption_recall@K`: share of images all of whose captions find them (TPC, appendix B.3);
    - `rank_std`, `worst_gap`: population standard deviation, and largest minus smallest, of the ranks of an
      image's captions (TPC, Eq. 67), averaged over the images with two captions or more.
    """

    def __init__(self, ks: Sequence[int] = (1, 5, 10)) -> None:
        self.ks = tuple(ks)
        if not self.ks or min(self.ks) < 1:
            raise UsageError(f"ks = {list(self.ks)}: expected whole numbers from 1, for example [1, 5, 10]")

    def rows(self, inputs: Inputs) -> Rows:
        """One row a query: columns `direction` (0 image-to-text, 1 text-to-image), `rank`, `rank_optimistic`.

        Raises `VlpipeError` for a K larger than a gallery, and for NaN scores with the ids of the rows.
        """
        self._check_galleries(len(inputs.image_ids), len(inputs.text_ids))
        try:
            found = ranks(inputs.scores, inputs.text_image, len(inputs.image_ids))
        except NonFiniteScoresError as error:
            raise NonFiniteScoresError(error.images, error.texts, inputs.image_ids, inputs.text_ids) from None
        image_ids = np.array(inputs.image_ids, dtype=object)[found.i2t.query]
        text_ids = np.array(inputs.text_ids, dtype=object)[found.t2i.query]
        both = (found.i2t, found.t2i)
        return Rows(
            np.concatenate([image_ids, text_ids]),
            np.concatenate([found.i2t.query, inputs.text_image[found.t2i.query]]),
            {
                "direction": np.repeat(np.array([I2T, T2I], dtype=np.int8), [len(d.query) for d in both]),
                "rank": _joined(both, "pessimistic"),
                "rank_optimistic": _joined(both, "optimistic"),
            },
        )

    def _check_galleries(self, images: int, texts: int) -> None:
        for size, what in sorted([(images, "images"), (texts, "texts")]):  # what suits the smaller suits both
            if max(self.ks) > size:
                fitting = ",".join(str(k) for k in self.ks if k <= size) or "1"
                raise VlpipeError(
                    f"Recall@{max(self.ks)} of a gallery of {size} {what}: expected K of at most {size}; "
                    f"evaluate more rows or choose --set 'ks=[{fitting}]'"
                )

    def summarise(self, rows: Rows) -> dict[str, float]:
        """All numbers that the rows define."""
        numbers: dict[str, float] = {}
        for direction, name in NAMES.items():
            asked = rows.values["direction"] == direction
            for column, suffix in (("rank", ""), ("rank_optimistic", "_optimistic")):
                numbers |= self._by_query(rows.values[column][asked], name, suffix)
        asked = rows.values["direction"] == T2I
        return numbers | self._by_image(rows.values["rank"][asked], rows.image[asked])

    def _by_query(self, rank: IntArray, name: str, suffix: str) -> dict[str, float]:
        if not len(rank):
            return {}
        numbers = {f"{name}_recall@{k}{suffix}": float(np.mean(rank <= k)) for k in self.ks}
        return numbers | {f"{name}_median_rank{suffix}": float(np.median(rank))}

    def _by_image(self, rank: IntArray, image: IntArray) -> dict[str, float]:
        """Numbers over captions, then over images; `rank` and `image` are of the text queries."""
        if not len(rank):
            return {}
        captions = np.bincount(image)
        has = captions > 0
        numbers: dict[str, float] = {}
        for k in self.ks:
            hits = np.bincount(image, weights=rank <= k)[has]
            numbers[f"mean_caption_recall@{k}"] = float(np.mean(hits / captions[has]))
            numbers[f"worst_caption_recall@{k}"] = float(np.mean(hits == captions[has]))
        std, gap = per_image_sensitivity(rank, image)
        return numbers | ({"rank_std": float(std.mean()), "worst_gap": float(gap.mean())} if len(std) else {})

    def counts(self, rows: Rows) -> dict[str, int]:
        """Queries behind the recalls and median ranks, images behind the numbers over captions."""
        texts = rows.values["direction"] == T2I
        captions = np.bincount(rows.image[texts], minlength=1)
        sizes = {"i2t": int((~texts).sum()), "t2i": int(texts.sum())}
        sizes |= {"mean": int((captions > 0).sum()), "worst_caption": int((captions > 0).sum())}
        sizes |= {"rank_std": int((captions > 1).sum()), "worst_gap": int((captions > 1).sum())}
        return {
            name: next(size for start, size in sizes.items() if name.startswith(start))
            for name in self.summarise(rows)
        }


def per_image_sensitivity(
    rank: IntArray, image: IntArray
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """RankStd and WorstGap of every image with two captions or more (TPC, Eq. 67), in image order.

    `rank` and `image` (texts,): text-to-image rank, and position of the image, of each caption.
    """
    captions = np.bincount(image)
    several = captions > 1
    mean = np.bincount(image, weights=rank) / np.maximum(captions, 1)
    variance = np.bincount(image, weights=(rank - mean[image]) ** 2) / np.maximum(captions, 1)
    highest = np.zeros(len(captions))
    lowest = np.full(len(captions), np.inf)
    np.maximum.at(highest, image, rank)
    np.minimum.at(lowest, image, rank)
    return np.sqrt(variance[several]), highest[several] - lowest[several]


def _joined(both: tuple[Direction, Direction], end: str) -> IntArray:
    return np.concatenate([getattr(direction, end) for direction in both])
