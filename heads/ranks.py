"""Exact retrieval ranks both ways, block by block: the full matrix of scores never exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlpipe.foundation.errors import UsageError, VlpipeError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Scores = Callable[[slice, slice], Tensor]

TIE_EPS = 64  # scores closer than this many eps of the largest |score| are tied
KEEP_BYTES = 64 << 20  # tiles of the first pass that the second need not score again


class NonFiniteScoresError(VlpipeError):
    """NaN or infinite scores, with the positions of the rows at fault (`images`, `texts`)."""

    def __init__(
        self,
        images: Sequence[int],
        texts: Sequence[int],
        image_ids: Sequence[str] | None = None,
        text_ids: Sequence[str] | None = None,
    ) -> None:
        self.images, self.texts = list(images), list(texts)
        parts = [_named("image", self.images, image_ids), _named("text", self.texts, text_ids)]
        super().__init__(
            f"scores are NaN or infinite for {' and '.join(p for p in parts if p)}; "
            "expected finite numbers: look at these rows' features and at the head's training log"
        )


def _named(what: str, positions: list[int], ids: Sequence[str] | None) -> str:
    if not positions:
        return ""
    shown = [str(p) if ids is None else f"'{ids[p]}'" for p in positions[:5]]
    more = f" and {len(positions) - 5} more" if len(positions) > 5 else ""
    return f"{what} {'rows' if ids is None else 'ids'} {', '.join(shown)}{more}"


@dataclass(frozen=True)
class Direction:
    """Ranks of one direction's queries, 1-based.

    `query` (queries,): positions of the images or texts that ask; `optimistic` and `pessimistic` (queries,):
    ties with the best match count for it or against it. The pessimistic end is the one to report.
    """

    query: IntArray
    optimistic: IntArray
    pessimistic: IntArray

    def recall(self, k: int) -> float:
        """Share of queries with pessimistic rank <= k, in [0, 1]; raises `VlpipeError` without any query."""
        if not len(self.query):
            raise VlpipeError("recall without a single query: expected images that have texts")
        return float(np.mean(self.pessimistic <= k))


@dataclass(frozen=True)
class Ranks:
    """Both directions: `i2t` of images that have texts, `t2i` of texts that have an image."""

    i2t: Direction
    t2i: Direction


def ranks(scores: Scores, text_image: IntArray, images: int, block: int = 1024) -> Ranks:
    """Rank of each query's best match: 1 + the non-matching candidates that score higher (optimistic) or at
    least as high (pessimistic).

    `scores(images slice, texts slice)` is the (images, texts) block of similarities, float32 or float64, a
    new tensor each call; it is asked for at most (block, block) at once. `text_image` (texts,): position of
    each text's image, -1 for none. An image's match is the best of its texts, and its other texts never count
    against it. Texts without an image are distractors for images, images without texts for texts.

    Equal vectors may score differently in the last bits inside one matrix product, hence scores closer than
    64 eps(dtype) max|score| are tied. Each tile is scored twice at most: for the matches and the
    largest |score|, then to count; up to 64 MiB of tiles are kept in between. Memory is O(block^2 + images +
    texts) beside them.

    Raises `NonFiniteScoresError` (positions of rows), `UsageError` for a bad block or `text_image`.
    """
    texts = len(text_image)
    if block < 1:
        raise UsageError(f"block {block}: expected 1 row or more")
    if texts and not (int(text_image.min()) >= -1 and int(text_image.max()) < images):
        raise UsageError(f"text_image: expected positions from -1 to {images - 1}")
    counter = _Counter(scores, np.asarray(text_image, dtype=np.int64), images, block)
    counter.match()
    return counter.count()


class _Counter:
    """The two passes over the tiles."""

    def __init__(self, scores: Scores, text_image: IntArray, images: int, block: int) -> None:
        self.scores = scores
        self.text_image = text_image
        self.images = images
        self.block = block
        self.kept: dict[tuple[int, int], Tensor] = {}
        self.room = KEEP_BYTES
        self.own: FloatArray = np.full(len(text_image), np.nan)  # score of each text with its image
        self.best: FloatArray = np.full(images, -np.inf)  # score of each image with the best of its texts
        self.largest = 0.0
        self.eps = 0.0

    def tiles(self) -> Iterator[tuple[slice, slice]]:
        """Slices of images and of texts that cover the matrix once."""
        for i in range(0, self.images, self.block):
            for t in range(0, len(self.text_image), self.block):
                rows = slice(i, min(i + self.block, self.images))
                yield rows, slice(t, min(t + self.block, len(self.text_image)))

    def match(self) -> None:
        """First pass: each query's best match and the largest |score|; refuses scores that are not finite."""
        bad: list[tuple[IntArray, IntArray]] = []
        for rows, columns in self.tiles():
            tile = self.checked(rows, columns)
            if not bool(torch.isfinite(tile).all()):
                wrong = np.argwhere(~torch.isfinite(tile).cpu().numpy())
                bad.append((wrong[:, 0] + rows.start, wrong[:, 1] + columns.start))
                continue
            self.largest = max(self.largest, float(tile.abs().max()))
            self.eps = max(self.eps, torch.finfo(tile.dtype).eps)
            self.gather(tile, rows, columns)
        if bad:
            raise self.blame(bad)
        has = self.text_image >= 0
        np.maximum.at(self.best, self.text_image[has], self.own[has])

    def checked(self, rows: slice, columns: slice) -> Tensor:
        """One tile, kept for the second pass while there is room."""
        tile = self.scores(rows, columns).detach()
        expected = (rows.stop - rows.start, columns.stop - columns.start)
        if tuple(tile.shape) != expected or tile.dtype not in (torch.float32, torch.float64):
            raise VlpipeError(
                f"scores of shape {tuple(tile.shape)} and {tile.dtype}: expected {expected}, float32 or float64"
            )
        size = tile.numel() * tile.element_size()
        if size <= self.room:
            self.kept[rows.start, columns.start] = tile
            self.room -= size
        return tile

    def gather(self, tile: Tensor, rows: slice, columns: slice) -> None:
        """Note the scores of the texts whose image lies in this tile."""
        image = self.text_image[columns]
        inside = np.flatnonzero((image >= rows.start) & (image < rows.stop))
        picked = tile[torch.from_numpy(image[inside] - rows.start), torch.from_numpy(inside)]
        self.own[columns.start + inside] = picked.double().cpu().numpy()

    def blame(self, bad: list[tuple[IntArray, IntArray]]) -> NonFiniteScoresError:
        """The rows all of whose scores are bad; where there is none, all rows that took part in a bad one."""
        rows, columns = (np.concatenate(part) for part in zip(*bad, strict=True))
        whole_images = np.flatnonzero(np.bincount(rows, minlength=self.images) == len(self.text_image))
        whole_texts = np.flatnonzero(np.bincount(columns, minlength=len(self.text_image)) == self.images)
        if not len(whole_images) and not len(whole_texts):
            whole_images, whole_texts = np.unique(rows), np.unique(columns)
        return NonFiniteScoresError(whole_images.tolist(), whole_texts.tolist())

    def count(self) -> Ranks:
        """Second pass: candidates above each query's match, and those not below it."""
        tie = TIE_EPS * self.eps * self.largest
        image_counts = np.zeros((2, self.images), dtype=np.int64)
        text_counts = np.zeros((2, len(self.text_image)), dtype=np.int64)
        for rows, columns in self.tiles():
            tile = self.kept.get((rows.start, columns.start))
            tile = self.scores(rows, columns).detach() if tile is None else tile
            others = tile.masked_fill(self.matches(rows, columns).to(tile.device), -torch.inf)
            best = torch.from_numpy(self.best[rows, None]).to(tile)  # (images, 1)
            own = torch.from_numpy(self.own[None, columns]).to(tile)  # (1, texts)
            for end, (compare, shift) in enumerate(((torch.gt, tie), (torch.ge, -tie))):
                image_counts[end, rows] += compare(others, best + shift).sum(1).cpu().numpy()
                text_counts[end, columns] += compare(others, own + shift).sum(0).cpu().numpy()
        has_texts = np.flatnonzero(np.isfinite(self.best))
        has_image = np.flatnonzero(self.text_image >= 0)
        return Ranks(_direction(has_texts, image_counts), _direction(has_image, text_counts))

    def matches(self, rows: slice, columns: slice) -> Tensor:
        """(images, texts) of one tile: True where the text is the image's own."""
        return torch.from_numpy(np.arange(rows.start, rows.stop)[:, None] == self.text_image[None, columns])


def _direction(query: IntArray, counts: IntArray) -> Direction:
    return Direction(query, 1 + counts[0, query], 1 + counts[1, query])
