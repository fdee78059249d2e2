"""What a made-up view must keep to (TPC, appendix B.2): its length, no new names, nearness to the caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlpipe.derive.memory import Memory
from vlpipe.derive.tagging import known_as, tag
from vlpipe.extract.contracts import Encoder, TextItem
from vlpipe.extract.load import fingerprints, load_encoder
from vlpipe.extract.output_names import main_output
from vlpipe.foundation.errors import UsageError
from vlpipe.foundation.files import digest

EPS = 1e-12
BATCH = 64  # texts of one call of the encoder


def words(text: str) -> int:
    """Words and numbers of a text; punctuation marks do not count."""
    return sum(token.is_word for token in tag(text))


def length_fits(text: str, least: int, most: int) -> bool:
    """Rule 1: `least` to `most` words."""
    return least <= words(text) <= most


def new_names(text: str, caption: str) -> list[str]:
    """Rule 2: names in the text that the caption does not have, whatever their case.

    A name is a capitalised word inside a sentence, or one at its start that the lexicon has only with a capital.
    """
    known = {token.lower.removesuffix("'s") for token in tag(caption)}
    return [name for name in names(text) if name.lower().removesuffix("'s") not in known]


def names(text: str) -> list[str]:
    """Named entities' words: see `new_names`."""
    found = []
    start = True
    for token in tag(text):
        capital = token.text[0].isupper() and token.text != "I"
        if capital and (not start or (known_as(token.lower) is None and (known_as(token.text) or "NN") != "NN")):
            found.append(token.text)
        start = token.tag == "." or (start and not token.is_word)
    return found


@dataclass(frozen=True)
class Filter:
    """All rules together; without a nearness the third is left out."""

    least: int
    most: int
    min_cosine: float
    nearness: Nearness | None = None

    def faults(self, views: Sequence[str], captions: Sequence[str]) -> list[str]:
        """The first rule that each view breaks ("length", "name", "cosine"), "" where it keeps to all."""
        pairs = list(zip(views, captions, strict=True))
        faults = [self._fault(*pair) for pair in pairs]
        if self.nearness is not None:
            open_ = [place for place, fault in enumerate(faults) if not fault]
            cosines = self.nearness.cosines([pairs[place] for place in open_])
            for place, cosine in zip(open_, cosines, strict=True):
                faults[place] = "" if cosine >= self.min_cosine else "cosine"
        return faults

    def _fault(self, view: str, caption: str) -> str:
        if not length_fits(view, self.least, self.most):
            return "length"
        return "name" if new_names(view, caption) else ""


class Nearness:
    """Rule 3: cosines of texts under a frozen text encoder's main output; computed once, then remembered."""

    def __init__(self, spec: str, settings: Mapping[str, Any], memory: Memory) -> None:
        self.encoder: Encoder = load_encoder(spec, settings)
        if "text" not in self.encoder.sides():
            raise UsageError(f"encoder '{spec}' encodes no texts; give a text encoder to compare views with")
        outputs = self.encoder.outputs("text")
        self.output = main_output(outputs)
        self.memory = memory
        self.identity = digest(fingerprints(self.encoder, "text", {self.output: outputs[self.output]}))

    def cosines(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """One a pair, 0 where either vector is zero."""
        keys = [digest(["cosine", self.identity, *pair]) for pair in pairs]
        known = self.memory.get(keys)
        missing = [place for place, key in enumerate(keys) if key not in known]
        if missing:
            vectors = self._vectors(sorted({text for place in missing for text in pairs[place]}))
            found = {keys[p]: repr(float(vectors[pairs[p][0]] @ vectors[pairs[p][1]])) for p in missing}
            self.memory.put(found)
            known |= found
        return [float(known[key]) for key in keys]

    def _vectors(self, texts: Sequence[str]) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
        """Unit vectors by text."""
        found: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {}
        for start in range(0, len(texts), BATCH):
            part = texts[start : start + BATCH]
            batch = self.encoder.collate([self.encoder.prepare(TextItem("", text)) for text in part])
            rows = self.encoder.encode(batch, (self.output,))[self.output].double().cpu().numpy()
            units = rows / (np.linalg.norm(rows, axis=1, keepdims=True) + EPS)
            found.update(zip(part, units, strict=True))
        return found
