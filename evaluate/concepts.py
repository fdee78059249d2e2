"""Which concept a text stands for, which ones an image has, and which ones a caption names."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vlpipe.evaluate.contracts import Inputs, IntArray
from vlpipe.foundation.errors import VlpipeError

BoolArray = npt.NDArray[np.bool_]
UNKNOWN = -1
HOW = "build the manifest with prompts (for MAD: --set prompts=true), then extract its texts"


@dataclass(frozen=True)
class Concepts:
    """The prompts of a manifest, each the value of one attribute; `values[c]` is of attribute `attribute[c]`.

    `prompts` (concepts,): their positions among the texts. `truth` (images, attributes): the concept that an image
    has, -1 where it has none of them. `captions` (n,): positions of the captions with an image; `said`
    (n, concepts), bool: whether a caption has the value among its words, `named` (n, attributes): whether it has
    one of the attribute.
    """

    attributes: list[str]
    values: list[str]
    attribute: IntArray
    prompts: IntArray
    truth: IntArray
    captions: IntArray
    said: BoolArray
    named: BoolArray

    @classmethod
    def of(cls, inputs: Inputs) -> Concepts:
        """From the columns "role", "text" and "attributes" of the texts, and "attributes" of the images.

        Raises `VlpipeError` without prompts that say which attribute they are a value of.
        """
        roles, told = inputs.columns["role"], inputs.columns["attributes"]
        prompts = [p for p, role in enumerate(roles) if role == "prompt" and "attribute" in told[p]]
        if not prompts:
            raise VlpipeError(f"no text is a prompt with the attributes 'attribute' and 'class'; {HOW}")
        names = list(dict.fromkeys(told[p]["attribute"] for p in prompts))
        values = [told[p]["class"] for p in prompts]
        attribute = np.array([names.index(told[p]["attribute"]) for p in prompts], dtype=np.int64)
        place = {(names[a], value): n for n, (a, value) in enumerate(zip(attribute, values, strict=True))}
        truth = [
            [place.get((name, image.get(name)), UNKNOWN) for name in names]
            for image in inputs.image_columns["attributes"]
        ]
        captions = [p for p, role in enumerate(roles) if role == "caption" and inputs.text_image[p] >= 0]
        words = [set(re.findall(r"\w+", inputs.columns["text"][p])) for p in captions]
        said = np.array([[value in own for value in values] for own in words], dtype=np.bool_)
        said = said.reshape(-1, len(values))
        return cls(
            names,
            values,
            attribute,
            np.array(prompts, dtype=np.int64),
            np.array(truth, dtype=np.int64).reshape(-1, len(names)),
            np.array(captions, dtype=np.int64),
            said,
            np.stack([said[:, attribute == n].any(axis=1) for n in range(len(names))], axis=1),
        )
