"""Zero-shot attributes: which of an attribute's values an encoder sees in a picture.

It encodes here and now, beside the cache and the shelf of tasks, which both start from an encoder that is there to
be named: these are the numbers of a model's card, measured before a model is shipped and anything is cached of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from vlpipe.extract.contracts import Encoder, ImageItem, Item, TextItem
from vlpipe.extract.pictures import decode
from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.manifest import Manifest

CHUNK = 256  # items encoded at once


def attribute_accuracy(
    encoder: Encoder, manifest: Manifest, split: str, output: str = "pooled"
) -> dict[str, float]:
    """Percent of a split's images whose value is found, by attribute.

    An attribute's classes are its values in the split; a class's prompt is the value's name alone; the answer is
    the prompt of the highest cosine with the image, the first of equal ones. Images without the attribute do not
    count. Raises `VlpipeError` when no image of the split has attributes.
    """
    rows = [row for row in manifest.table("image").to_pylist() if row["split"] == split]
    described = [dict(row["attributes"] or ()) for row in rows]
    names = sorted({name for row in described for name in row})
    if not names:
        raise VlpipeError(f"manifest '{manifest.folder}' has no image of the split '{split}' with attributes")
    pictures = (ImageItem(row["image_id"], decode(manifest.image_root / row["path"])) for row in rows)
    images = encoded(encoder, pictures, output)
    found = {}
    for name in names:
        truth = [row.get(name) for row in described]
        values = sorted({value for value in truth if value is not None})
        prompts = encoded(encoder, (TextItem(value, value) for value in values), output)
        found[name] = accuracy(images, prompts, [-1 if v is None else values.index(v) for v in truth])
    return found


def accuracy(images: Tensor, prompts: Tensor, truth: Sequence[int]) -> float:
    """Percent of images (n, d) whose nearest prompt (classes, d) by cosine is `truth` (n); -1 does not count."""
    cosines = torch.nn.functional.normalize(images, dim=1) @ torch.nn.functional.normalize(prompts, dim=1).T
    if not bool(torch.isfinite(cosines).all()):
        raise VlpipeError("an embedding is not finite; no accuracy can be told")
    answers, known = cosines.argmax(dim=1).cpu().numpy(), np.asarray(truth)
    counted = known >= 0
    return float(100 * (answers[counted] == known[counted]).mean())


def encoded(encoder: Encoder, items: Iterable[Item], output: str) -> Tensor:
    """Rows (items, d) of one output, on the CPU in float32."""
    parts: list[Tensor] = []
    waiting = []
    for item in items:
        waiting.append(encoder.prepare(item))
        if len(waiting) == CHUNK:
            parts.append(encoder.encode(encoder.collate(waiting), (output,))[output].float().cpu())
            waiting = []
    if waiting:
        parts.append(encoder.encode(encoder.collate(waiting), (output,))[output].float().cpu())
    return torch.cat(parts)
