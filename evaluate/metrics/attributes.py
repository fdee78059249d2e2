"""Which attributes an image embedding still shows after it was edited by a caption (TEVI, Tables A1 and A2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlpipe.evaluate.concepts import UNKNOWN, Concepts
from vlpipe.evaluate.contracts import Inputs, IntArray, Rows
from vlpipe.evaluate.edits import Edits
from vlpipe.foundation.errors import UnknownNameError, VlpipeError
from vlpipe.heads.ranks import TIE_EPS

Array = npt.NDArray[Any]
STEP = 1024  # captions at once
NAMED, CHANCE = "named:", "chance:"
ORIGINAL, REBUILT, EDITED, ABLATED = "original", "rebuilt", "edited", "ablated"
VALUE, CATEGORY = "value", "category"
SPLIT = (EDITED, VALUE, CATEGORY)  # told apart by whether the caption names the attribute


class Attributes:
    """Zero-shot accuracy of each attribute: the prompt of the highest cosine among the attribute's values.

    Images are `original` embeddings, `rebuilt` with everything kept, `edited` by a caption, edited by its `value`
    or `category` mask, or `ablated`: rebuilt without the latents of one attribute. A latent belongs to the concept
    nearest to it (Eq. 5). The value mask keeps the latents of the values that the caption names (Eq. 7). These
    hand over the label, so that it is no measure of editing by itself; beside it stands the category mask, which
    keeps all latents of the attributes that the caption names and hands over none.

    Numbers (shares): `accuracy_KIND:ATTRIBUTE`, and their means over attributes `accuracy_KIND`; edited, value and
    category as `_in` and `_out`, where the caption names the attribute or not; `chance_accuracy:ATTRIBUTE`;
    `cosine_original` and `cosine_edited` of an image and its caption. A head that does not edit has `original`
    only.
    """

    def __init__(self, ablate: str | None = None) -> None:
        self.ablate = ablate

    def rows(self, inputs: Inputs) -> Rows:
        """One row a caption: `named:ATTRIBUTE`, and `KIND:ATTRIBUTE`, 1 for a hit, 0 for none, -1 for no truth."""
        concepts = Concepts.of(inputs)
        if not len(concepts.captions):
            raise VlpipeError("none of the images has a caption to be edited by; expected texts of role caption")
        parts = list(self._parts(inputs, concepts))
        values = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for n, name in enumerate(concepts.attributes):
            values[NAMED + name] = concepts.named[:, n]
            share = 1 / int((concepts.attribute == n).sum())
            values[CHANCE + name] = np.full(len(concepts.captions), share)
        ids = np.array(inputs.text_ids, dtype=object)[concepts.captions]
        return Rows(ids, inputs.text_image[concepts.captions], values)

    def _parts(self, inputs: Inputs, concepts: Concepts) -> Iterator[dict[str, Array]]:
        """Columns of some captions at a time."""
        prompts = inputs.vectors("text", concepts.prompts)
        for start in range(0, len(concepts.captions), STEP):
            part = slice(start, start + STEP)
            captions = concepts.captions[part]
            images = inputs.text_image[captions]
            found: dict[str, Array] = {}
            for kind, rows in self._kinds(inputs, concepts, images, part):
                hits = hits_of(rows, prompts, concepts, images)
                found |= {f"{kind}:{name}": hits[:, n] for n, name in enumerate(concepts.attributes)}
                if kind in (ORIGINAL, EDITED):
                    texts = inputs.vectors("text", captions)
                    found[f"cosine:{kind}"] = (rows * texts).sum(dim=1).numpy()
            yield found

    def _kinds(
        self, inputs: Inputs, concepts: Concepts, images: IntArray, part: slice
    ) -> Iterator[tuple[str, Tensor]]:
        """Unit embeddings (rows, d) of the captions' images, by kind."""
        edits = inputs.edits
        if edits is None:
            yield ORIGINAL, inputs.vectors("image", images)
            return
        yield ORIGINAL, edits.original(images)
        whole = edits.all_kept(images)
        yield REBUILT, edits.edited(images, whole)
        yield EDITED, edits.edited(images, edits.keep(concepts.captions[part]))
        nearest = self._nearest(edits, concepts)
        if nearest is not None:
            latents = concepts.attribute[nearest]
            yield VALUE, edits.edited(images, torch.from_numpy(concepts.said[part][:, nearest]).double())
            yield CATEGORY, edits.edited(images, torch.from_numpy(concepts.named[part][:, latents]).double())
            if self.ablate is not None:
                kept = torch.from_numpy(latents != concepts.attributes.index(self.ablate))
                yield ABLATED, edits.edited(images, whole * kept)

    def _nearest(self, edits: Edits, concepts: Concepts) -> IntArray | None:
        """Each latent's concept, (latents,); raises `UnknownNameError` for an attribute to ablate."""
        if self.ablate is not None and self.ablate not in concepts.attributes:
            raise UnknownNameError("attribute", self.ablate, concepts.attributes)
        return edits.nearest(concepts.prompts)

    def summarise(self, rows: Rows) -> dict[str, float]:
        """All numbers that the rows define."""
        return {name: float(np.mean(values)) for name, values in self._counted(rows).items()} | self._means(rows)

    def counts(self, rows: Rows) -> dict[str, int]:
        """Captions behind each number; attributes behind a mean of them."""
        found = {name: len(values) for name, values in self._counted(rows).items()}
        return found | {name: len(rows) for name in self._means(rows)}

    def _means(self, rows: Rows) -> dict[str, float]:
        """Means over attributes."""
        parts: dict[str, list[float]] = {}
        for name, values in self._counted(rows).items():
            kind, of, _ = name.partition(":")
            if of:
                parts.setdefault(kind, []).append(float(np.mean(values)))
        return {kind: float(np.mean(values)) for kind, values in parts.items()}

    def _counted(self, rows: Rows) -> dict[str, Array]:
        """By number: the rows' values that it is the mean of, none of them empty."""
        found: dict[str, Array] = {}
        for column, values in rows.values.items():
            kind, _, name = column.partition(":")
            if kind == "cosine":
                found[f"cosine_{name}"] = values
            elif kind == CHANCE[:-1]:
                found[f"chance_accuracy:{name}"] = values
            elif kind != NAMED[:-1]:
                known = values != UNKNOWN
                there = rows.values[NAMED + name].astype(np.bool_)
                split = {"_in": known & there, "_out": known & ~there} if kind in SPLIT else {"": known}
                found |= {f"accuracy_{kind}{end}:{name}": values[chosen] for end, chosen in split.items()}
        return {name: values for name, values in found.items() if len(values)}


def hits_of(rows: Tensor, prompts: Tensor, concepts: Concepts, images: IntArray) -> Array:
    """Whether each attribute's best prompt is the image's, (n, attributes), from unit rows (n, d) and prompts.

    1 for a hit, 0 for none, -1 where the image has no value of the attribute. A tie with another value is no hit.
    """
    cosines = (rows @ prompts.T).numpy()
    if not np.isfinite(cosines).all():
        raise VlpipeError("an edited embedding is not finite; look at the head's training log")
    tie = TIE_EPS * np.finfo(cosines.dtype).eps * np.abs(cosines).max(axis=1, initial=0)
    truth = concepts.truth[images]
    found = np.full(truth.shape, UNKNOWN, dtype=np.int8)
    for n in range(len(concepts.attributes)):
        known = truth[:, n] != UNKNOWN
        own, others = cosines[known, truth[known, n]], cosines[known]
        others[:, concepts.attribute != n] = -np.inf
        others[np.arange(len(own)), truth[known, n]] = -np.inf
        found[known, n] = own > others.max(axis=1, initial=-np.inf) + tie[known]
    return found
