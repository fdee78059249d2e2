"""Hard negatives: captions with one thing changed that are most likely false of their picture.

The families (replace, swap, add) are SugarCrepe's (Hsieh et al., 2023), on whose sets JAM is tried; the rules here
need no language model. A negative is as false as the image's own captions and the manifest can tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, get_args

import numpy as np
from pydantic import Field, field_validator

from vlpipe.derive.additions import added_attributes, added_objects
from vlpipe.derive.captions import Caption, by_image
from vlpipe.derive.changes import Change, Scene, bare, grammatical
from vlpipe.derive.replacements import replaced_attributes, replaced_objects, replaced_relations
from vlpipe.derive.swaps import swapped_attributes, swapped_objects
from vlpipe.derive.vocabulary import Vocabulary
from vlpipe.foundation.config import Config
from vlpipe.foundation.progress import Advance, silent
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.manifest import Manifest

CODE = 1  # version: raised when the same captions would get other negatives
Rule = Literal["replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att", "add_obj", "add_att"]
Finder = Callable[[str, Scene, Vocabulary], Iterator[Change]]
FINDERS: Mapping[Rule, Finder] = {
    "replace_obj": replaced_objects,
    "replace_att": replaced_attributes,
    "replace_rel": replaced_relations,
    "swap_obj": swapped_objects,
    "swap_att": swapped_attributes,
    "add_obj": added_objects,
    "add_att": added_attributes,
}


class NegativesConfig(Config):
    """Which negatives, and how many."""

    rules: list[Rule] = Field(default=list(get_args(Rule)), min_length=1)
    per_caption: int = Field(default=1, ge=1)  # at most; a caption may have room for fewer
    seed: int = Field(default=0, ge=0)
    read: int = Field(default=40_000, ge=1)  # images, at most and evenly spread, that the vocabulary is made of

    @field_validator("rules")
    @classmethod
    def _once(cls, rules: list[str]) -> list[str]:
        if len(set(rules)) < len(rules):
            raise ValueError("a rule stands twice")
        return rules


@dataclass
class Negatives:
    """Makes the rows; `told` counts captions, negatives by rule, and captions that got fewer than asked."""

    config: NegativesConfig
    told: Counter[str] = field(default_factory=Counter)

    def rows(self, manifest: Manifest, advance: Advance = silent) -> Iterator[Row]:
        """Negatives of all captions, image by image; ids are `CAPTION@negative-0`, ..."""
        step = max(1, -(-manifest.count("image") // self.config.read))
        vocabulary = Vocabulary(self._texts(by_image(manifest), step, advance))
        for captions in by_image(manifest):
            yield from self.of_image(captions, vocabulary)
            advance(len(captions))

    def of_image(self, captions: Sequence[Caption], vocabulary: Vocabulary) -> Iterator[Row]:
        """Negatives of one image's captions; none is a caption of the image, and none comes twice."""
        scene = Scene(tuple(caption.text for caption in captions))
        taken = set(scene.texts)
        for caption in captions:
            self.told["captions"] += 1
            made = 0
            for change, text in self._chosen(caption, scene, vocabulary):
                if made == self.config.per_caption:
                    break
                if bare(text) in taken or not grammatical(caption.text, text):
                    continue
                taken.add(bare(text))
                self.told[change.rule] += 1
                yield self._row(caption, change, text, made)
                made += 1
            self.told["fewer than asked"] += made < self.config.per_caption

    def _chosen(self, caption: Caption, scene: Scene, vocabulary: Vocabulary) -> Iterator[tuple[Change, str]]:
        """Every change of a caption in a drawn order: rules take turns, so that no rich one starves another."""
        name = blake2b(caption.text_id.encode(), digest_size=8).digest()
        rng = np.random.default_rng([self.config.seed, int.from_bytes(name, "little")])
        piles = []
        for rule in rng.permutation(np.array(self.config.rules)):
            found = list(FINDERS[rule](caption.text, scene, vocabulary))
            piles.append([found[place] for place in rng.permutation(len(found))])
        for turn in range(max(map(len, piles))):
            for pile in piles:
                if turn < len(pile):
                    yield pile[turn], pile[turn].text(caption.text)

    @staticmethod
    def _row(caption: Caption, change: Change, text: str, number: int) -> Row:
        told = {"rule": change.rule, "from": change.before, "to": change.after}
        return caption.derived(f"negative-{number}", "hard_negative", text, told)

    @staticmethod
    def _texts(images: Iterable[Sequence[Caption]], step: int, advance: Advance) -> Iterator[list[str]]:
        for number, captions in enumerate(images):
            if number % step == 0:
                yield [caption.text for caption in captions]
            advance(len(captions))
