"""Training rows of one split: prepared pictures and texts, or cached images, and the batches of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlpipe.extract.contracts import Encoder, ImageItem, Prepared, TextItem
from vlpipe.extract.pictures import PictureError, decode
from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.progress import progress
from vlpipe.heads.sources import CachedRows
from vlpipe.manifests.manifest import Manifest

IntArray = npt.NDArray[np.int64]
Gather = Callable[[IntArray], Mapping[str, Tensor]]  # positions (rows,) to a tower's tensors, rows first


@dataclass(frozen=True)
class Pairs:
    """Images with their texts. A training row is an image.

    `images` gives those at some of n positions, `texts` at some of m. Texts lie together by image: those of image
    i are `first[i]` to `first[i + 1]`, at least one. `columns` holds manifest columns of the images, n entries
    each, `text_columns` of the texts, m each.
    """

    images: Gather
    texts: Gather
    first: IntArray
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    text_columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.first) - 1

    def captions(self, rows: IntArray, count: int, rng: np.random.Generator) -> IntArray:
        """Text positions (rows, count) of images: each image's in random order, begun again when it has fewer."""
        sizes = self.first[rows + 1] - self.first[rows]
        keys = rng.random((len(rows), int(sizes.max())))
        keys[np.arange(keys.shape[1]) >= sizes[:, None]] = 2
        order = keys.argsort(axis=1)
        places = np.arange(count) % sizes[:, None]
        return self.first[rows][:, None] + np.take_along_axis(order, places, axis=1)

    def picked(self, rows: IntArray, captions: IntArray) -> dict[str, list[Any]]:
        """Every column of images (rows,), and lists of those of their captions (rows, K)."""
        found: dict[str, list[Any]] = {name: [every[i] for i in rows] for name, every in self.columns.items()}
        texts = {n: [[every[t] for t in own] for own in captions] for n, every in self.text_columns.items()}
        return found | texts

    def with_captions(self, count: int) -> IntArray:
        """Positions of the images that have at least `count` texts."""
        return np.flatnonzero(np.diff(self.first) >= count)


class Order:
    """Which rows each step sees: a seeded shuffle an epoch, whole batches only, so no row is twice in a batch."""

    def __init__(self, rows: IntArray, batch: int, seed: Sequence[int]) -> None:
        if len(rows) < batch:
            raise VlpipeError(f"{len(rows)} images cannot fill a batch of {batch}; lower the batch size")
        self.rows = rows
        self.batch = batch
        self.seed = list(seed)
        self._epoch = -1
        self._shuffled = rows

    def at(self, step: int) -> IntArray:
        """Rows of one step, from 0 on."""
        epoch, place = divmod(step, len(self.rows) // self.batch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._shuffled = np.random.default_rng([*self.seed, epoch]).permutation(self.rows)
        return self._shuffled[place * self.batch : (place + 1) * self.batch]


class Items:
    """Prepared items in memory, in the dtype that the encoder chose (bytes for pictures, where it can).

    Put together by the batch, as in extraction: texts of a step are padded to the longest of them only.
    """

    def __init__(self, encoder: Encoder, items: Sequence[Prepared]) -> None:
        self.encoder = encoder
        self.items = items

    def __call__(self, rows: IntArray) -> Mapping[str, Tensor]:
        """One batch's tensors."""
        return self.encoder.collate([self.items[row] for row in rows]).tensors


class Rows:
    """Cached rows of images, by their positions in the manifest; read when a step asks."""

    def __init__(self, cached: CachedRows, positions: IntArray) -> None:
        self.cached = cached
        self.positions = positions

    def __call__(self, rows: IntArray) -> Mapping[str, Tensor]:
        """`rows` (rows, *shape)."""
        return {"rows": self.cached.take(self.positions[rows])}


def take(gather: Gather, rows: IntArray, device: torch.device) -> dict[str, Tensor]:
    """What lies at some positions, of any shape, one after the other, on the device of the model."""
    return {name: tensor.to(device) for name, tensor in gather(rows.reshape(-1)).items()}


def load_pairs(
    manifest: Manifest, encoder: Encoder, split: str, role: str = "caption", cached: CachedRows | None = None
) -> Pairs | None:
    """All images of a split that have a text of the role, prepared by the encoder; None when there are none.

    With `cached` images are its rows, those without a usable one are left out, and no picture is read. Raises
    `VlpipeError` for a picture that cannot be read and for a text that the encoder refuses.
    """
    images = manifest.table("image").to_pylist()
    places = {row["image_id"]: place for place, row in enumerate(images) if row["split"] == split}
    if cached is not None:
        places = {image_id: place for image_id, place in places.items() if cached.usable[place]}
    captions: dict[str, list[TextItem]] = {}
    for row in manifest.table("text", ["text_id", "text", "image_id", "role"]).to_pylist():
        if row["role"] == role and row["image_id"] in places:
            captions.setdefault(row["image_id"], []).append(TextItem(row["text_id"], row["text"]))
    chosen = [images[place] for image_id, place in places.items() if image_id in captions]
    if not chosen:
        return None
    ids = [row["image_id"] for row in chosen]
    texts = [text for image_id in ids for text in captions[image_id]]
    first = np.cumsum([0, *(len(captions[image_id]) for image_id in ids)]).astype(np.int64)
    positions = np.array([places[image_id] for image_id in ids])
    words = Items(encoder, [encoder.prepare(text) for text in texts])
    return Pairs(
        _pictures(manifest, encoder, split, chosen) if cached is None else Rows(cached, positions),
        words,
        first,
        {"image_id": ids, "label": [row["label"] for row in chosen]},
        {"text_id": [text.id for text in texts], "text": [text.text for text in texts]},
    )


def _pictures(manifest: Manifest, encoder: Encoder, split: str, rows: Sequence[Mapping[str, Any]]) -> Items:
    prepared = []
    with progress(f"loading {split}", len(rows)) as advance:
        for row in rows:
            prepared.append(encoder.prepare(_picture(manifest, row)))
            advance(1)
    return Items(encoder, prepared)


def _picture(manifest: Manifest, row: Mapping[str, Any]) -> ImageItem:
    try:
        return ImageItem(row["image_id"], decode(manifest.image_root / row["path"]))
    except PictureError as error:
        raise VlpipeError(f"image '{row['image_id']}' cannot be used: {error}; mend it or leave it out") from None
