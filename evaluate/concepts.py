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
    has, -1 where it has none of them. `captions` (n,): positions of the captions with an image; `named`
    (n, attributes), bool: whether a caption has a value of the attribute among its words.
    """

    attributes: list[str]
    values: list[str]
    attribute: IntArray
    prompts: IntArray
    truth: IntArray
    captions: IntArray
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
        of_attribute = [{v for a, v in zip(attribute, values, strict=True) if a == n} for n in range(len(names))]
        named = [[bool(said & own) for own in of_attribute] for said in words]
        shape = (-1, len(names))
        return cls(
            names,
            values,
            attribute,
            np.array(prompts, dtype=np.int64),
            np.array(truth, dtype=np.int64).reshape(shape),
            np.array(captions, dtype=np.int64),
            np.array(named, dtype=np.bool_).reshape(shape),
        )
