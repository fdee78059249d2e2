"""A manifest's rows in memory: ids, and which image each text belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from vlpipe.manifests.manifest import Manifest

T = TypeVar("T")
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
CHAIN = 8  # a negative of a view of a caption: how many texts lie between a text and its image at most


@dataclass(frozen=True)
class Tables:
    """Columns of a manifest, by row.

    `text_image` (texts,) is the position of a text's image, `text_source` (texts,) that of the text that it was
    made from; -1 for none.
    """

    image_ids: list[str]
    split: list[str | None]
    label: list[str | None]
    text_ids: list[str]
    text_image: IntArray
    text_source: IntArray
    text_role: npt.NDArray[np.str_]
    text: pa.ChunkedArray

    @classmethod
    def read(cls, manifest: Manifest) -> Tables:
        """Both tables, joined."""
        images = manifest.table("image", ["image_id", "split", "label"])
        texts = manifest.table("text", ["text_id", "text", "image_id", "role", "source_text_id"])
        source = _positions(texts["source_text_id"], texts["text_id"])
        return cls(
            image_ids=images["image_id"].to_pylist(),
            split=images["split"].to_pylist(),
            label=images["label"].to_pylist(),
            text_ids=texts["text_id"].to_pylist(),
            text_image=_owners(images, texts, source),
            text_source=source,
            text_role=np.array(texts["role"].to_pylist(), dtype=np.str_),
            text=texts["text"],
        )

    def texts(self, positions: IntArray) -> list[str]:
        """Texts to the letter, '' at position -1."""
        there = positions >= 0
        found = iter(self.text.take(pa.array(positions[there])).to_pylist())
        return [next(found) if is_there else "" for is_there in there]


def _owners(images: Any, texts: Any, source: IntArray) -> IntArray:
    """Each text's image: its own `image_id`, else that of the text that it was made from."""
    owner = _positions(texts["image_id"], images["image_id"])
    for _ in range(CHAIN):
        orphans = np.flatnonzero((owner < 0) & (source >= 0))
        if not len(orphans):
            break
        owner[orphans] = owner[source[orphans]]
    return owner


def _positions(values: Any, known: Any) -> IntArray:
    """Where each value stands among the known ones, -1 for null or unknown."""
    found = pc.index_in(values, value_set=known.combine_chunks(), skip_nulls=True).fill_null(-1)
    return np.array(found.to_numpy(), dtype=np.int64)


class TextsByOwner:
    """The eligible texts of each owner (an image, or the text that they were made from), in manifest order.

    `owner` (texts,) is the position of each text's, -1 for none. Where owners are asked for, -1 has no texts.
    """

    def __init__(self, owner: IntArray, eligible: BoolArray, owners: int) -> None:
        texts = np.flatnonzero(eligible & (owner >= 0))
        self.texts: IntArray = texts[np.argsort(owner[texts], kind="stable")]
        # one more, without texts: position -1
        self.counts: IntArray = np.bincount(owner[texts], minlength=owners + 1).astype(np.int64)
        self.starts: IntArray = np.cumsum(self.counts) - self.counts

    def have(self) -> BoolArray:
        """Which owners have a text: (owners,)."""
        return self.counts[:-1] > 0

    def most(self, owners: IntArray) -> int:
        """How many texts the one of these with the most has."""
        return int(self.counts[owners].max(initial=0))

    def padded(self, owners: IntArray, width: int) -> IntArray:
        """The first `width` texts of each, (owners, width), -1 where there are fewer."""
        column = np.arange(width)
        there = column < self.counts[owners, None]
        where = np.where(there, self.starts[owners, None] + column, 0)
        return np.where(there, self.texts[where] if len(self.texts) else -1, -1)

    def drawn(self, owners: IntArray, width: int, seed: int, epoch: int) -> IntArray:
        """`width` texts of each, in a drawn order, none twice: (owners, width), -1 where there are fewer.

        The draw depends on the seed, the epoch and the owner's texts, never on its batch.
        """
        table = self.padded(owners, max(width, self.most(owners)))
        keys = np.where(table >= 0, scrambled(table, seed, epoch), np.uint64(2**64 - 1))
        order = np.argsort(keys, axis=1, kind="stable")[:, :width]
        return np.take_along_axis(table, order, axis=1)


def scrambled(positions: IntArray, *salts: int) -> npt.NDArray[np.uint64]:
    """A hash of each position and the salts, splitmix64's finaliser: like uniform draws, without a state."""
    state = positions.astype(np.uint64)
    for salt in salts:
        state = _mixed(state + _mixed_salt(salt))
    return state


@lru_cache(maxsize=64)  # an epoch's salts come back with every batch
def _mixed_salt(salt: int) -> npt.NDArray[np.uint64]:
    return _mixed(np.array([salt], dtype=np.uint64))


def _mixed(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def ids_at(ids: Sequence[T], positions: IntArray) -> list[T]:
    """Ids, or other values, of some rows, in their order."""
    return [ids[position] for position in positions.tolist()]
