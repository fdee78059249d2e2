"""White-noise pictures and texts of other things: what nothing in a set of photos and captions belongs to.

The easy non-matches of JAM's statistics before training (appendix B.3): `vlpipe eval --task alignment --beside`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image
from pydantic import Field

from vlpipe.foundation.config import Config
from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.contracts import Row

FOLDER = "noise-1"  # raised when the same settings draw other pixels: paths enter the manifest's digest
SHORTEST = 20  # characters of a line of a book that is worth encoding
# Words of minutes and essays: nothing that a camera sees. 16^3 sentences.
WHO = (
    "the committee", "our treaty", "his argument", "the new doctrine", "an earlier verdict", "the opposition",
    "her reputation", "the theorem", "their credit", "public opinion", "the amendment", "a rumour", "the bequest",
    "this policy", "the translation", "my conscience",
)  # fmt: skip
DOES = (
    "postponed", "contradicted", "outlived", "quietly undid", "depended on", "was mistaken for", "implied",
    "could not explain", "slowly replaced", "was silent about", "exaggerated", "had anticipated", "refuted",
    "grew out of", "was weighed against", "did not survive",
)  # fmt: skip
WHAT = (
    "the interest on the loan", "a century of doubt", "the rights of the heirs", "every hope of reform",
    "the second premise", "the terms of the merger", "an old promise", "the theory of value",
    "the date of the trial",
    "whatever he had meant", "the inflation of that year", "a question of honour", "the grammar of the oath",
    "the budget for research", "its own success", "the custom of the court",
)  # fmt: skip


class UnrelatedConfig(Config):
    """How much, and of which book."""

    count: int = Field(default=1000, ge=1)  # pictures, and texts
    size: int = Field(default=224, ge=1)  # pixels a side
    seed: int = Field(default=0, ge=0)
    book: str | None = None  # a plain text file, UTF-8, whose lines are the texts; else made sentences


class Unrelated:
    """Made, not read, but for the lines of a book. No text has an image; all rows are split test."""

    Config = UnrelatedConfig
    source: ClassVar[str] = "made by vlpipe: white noise and sentences of abstract words, or the lines of a book"
    licence: ClassVar[str] = "of the book, where there is one"

    def __init__(self, config: UnrelatedConfig, root: Path | None, folder: Path) -> None:
        self.config = config
        self.folder = folder
        lines = _sentences() if config.book is None else _lines(Path(config.book))
        if len(lines) < config.count:
            raise VlpipeError(
                f"{len(lines)} different texts of {SHORTEST} characters or more, expected {config.count}; "
                "set a smaller count, or a longer book"
            )
        drawn = np.random.default_rng([config.seed, 0]).permutation(len(lines))[: config.count]
        self.lines = [lines[place] for place in sorted(drawn.tolist())]

    def image_root(self) -> Path:
        """The manifest's own folder."""
        return self.folder

    def images(self) -> Iterator[Row]:
        """One row a picture; writes its PNG on the way."""
        size = self.config.size
        name = f"{FOLDER}/{size}-{self.config.seed}"
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(self.config.count):
            draw = np.random.default_rng([self.config.seed, 1, number])
            pixels = draw.integers(0, 256, (size, size, 3), dtype=np.uint8)
            path = f"{name}/{number:05d}.png"
            Image.fromarray(pixels).save(self.folder / path, compress_level=1)
            yield {"image_id": f"noise-{number:05d}", "path": path, "split": "test", "label": "noise"}

    def texts(self) -> Iterator[Row]:
        """One row a text, in the book's order."""
        for number, text in enumerate(self.lines):
            yield {"text_id": f"unrelated-{number:05d}", "text": text, "role": "caption", "split": "test"}


def _sentences() -> list[str]:
    """All, each once."""
    return [f"{who.capitalize()} {does} {what}." for who, does, what in product(WHO, DOES, WHAT)]


def _lines(book: Path) -> list[str]:
    try:
        text = book.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise VlpipeError(f"book '{book}' cannot be read ({error}); expected a plain text file, UTF-8") from None
    lines = dict.fromkeys(" ".join(line.split()) for line in text.splitlines())
    return [line for line in lines if len(line) >= SHORTEST]
