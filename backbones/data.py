"""Training rows in memory: prepared images and texts of one split, and the batches of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlpipe.extract.contracts import Encoder, ImageItem, TextItem
from vlpipe.extract.pictures import PictureError, decode
from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.progress import Advance, progress, silent
from vlpipe.manifests.manifest import Manifest

IntArray = npt.NDArray[np.int64]
CHUNK = 256  # items collated at once while loading


@dataclass(frozen=True)
class Pairs:
    """Images with their texts. A training row is an image.

    `images[name]` is (n, ...), `texts[name]` (m, ...), as the encoder prepared them, in the dtype that it chose
    (bytes for pictures, where it can). Texts lie together by image: those of image i are rows `first[i]` to
    `first[i + 1]`, at least one. `columns` holds manifest columns of the images, n entries each.
    """

    images: Mapping[str, Tensor]
    texts: Mapping[str, Tensor]
    first: IntArray
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)

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


def take(tensors: Mapping[str, Tensor], rows: IntArray, device: torch.device) -> dict[str, Tensor]:
    """Some rows of prepared tensors, on the device of the model."""
    index = torch.from_numpy(np.ascontiguousarray(rows.reshape(-1)))
    return {name: tensor[index].to(device) for name, tensor in tensors.items()}


def load_pairs(manifest: Manifest, encoder: Encoder, split: str, role: str = "caption") -> Pairs | None:
    """All images of a split that have a text of the role, prepared by the encoder; None when there are none.

    Raises `VlpipeError` for an image that cannot be read and for a text that the encoder refuses.
    """
    images = manifest.table("image").to_pylist()
    chosen = {row["image_id"]: row for row in images if row["split"] == split}
    captions: dict[str, list[TextItem]] = {}
    for row in manifest.table("text", ["text_id", "text", "image_id", "role"]).to_pylist():
        if row["role"] == role and row["image_id"] in chosen:
            captions.setdefault(row["image_id"], []).append(TextItem(row["text_id"], row["text"]))
    ids = [image_id for image_id in chosen if image_id in captions]
    if not ids:
        return None
    texts = [text for image_id in ids for text in captions[image_id]]
    first = np.cumsum([0, *(len(captions[image_id]) for image_id in ids)]).astype(np.int64)
    with progress(f"loading {split}", len(ids)) as advance:
        pictures = _stacked(encoder, lambda i: _picture(manifest, chosen[ids[i]]), len(ids), advance)
    words = _stacked(encoder, lambda i: texts[i], len(texts), silent)
    return Pairs(pictures, words, first, {"image_id": ids, "label": [chosen[i]["label"] for i in ids]})


def _picture(manifest: Manifest, row: Mapping[str, Any]) -> ImageItem:
    try:
        return ImageItem(row["image_id"], decode(manifest.image_root / row["path"]))
    except PictureError as error:
        raise VlpipeError(f"image '{row['image_id']}' cannot be used: {error}; mend it or leave it out") from None


def _stacked(
    encoder: Encoder, item: Callable[[int], ImageItem | TextItem], count: int, advance: Advance
) -> dict[str, Tensor]:
    parts = []
    for start in range(0, count, CHUNK):
        rows = range(start, min(start + CHUNK, count))
        parts.append(encoder.collate([encoder.prepare(item(i)) for i in rows]).tensors)
        advance(len(rows))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
