"""One change of a caption, and whether it may stand: grammar, and truth as far as the other captions tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

from vlpipe.derive.opposites import COLOUR_FAMILIES, GENDERS, OBJECTS, PERSONS, SAME_KIND, VAGUE
from vlpipe.derive.tagging import Token, tag
from vlpipe.derive.vocabulary import Vocabulary, stem, word_forms
from vlpipe.derive.wording import reworded

INSIDE = ("JJ", "JJR", "JJS", "CC", "VBN", ",", "CD")  # tags inside of a noun phrase, before its noun
ALIKE = 0.3  # nouns that meet oftener than this share of chance may be true of the same picture


@dataclass(frozen=True)
class Change:
    """What a rule does to a caption: by token its new text. `before` and `after` are the words it is about."""

    rule: str
    before: str
    after: str
    edits: Mapping[int, str]

    def text(self, caption: str) -> str:
        """The caption changed, with its articles made to fit."""
        return reworded(caption, tag(caption), self.edits)


@dataclass(frozen=True)
class Scene:
    """All that is said of one image."""

    captions: tuple[str, ...]

    @cached_property
    def words(self) -> frozenset[str]:
        """Every word of every caption in lower case, as it is written and singular."""
        return frozenset().union(*map(word_forms, self.captions))

    @cached_property
    def texts(self) -> frozenset[str]:
        """The captions by what is compared: words alone, in lower case."""
        return frozenset(map(bare, self.captions))

    def qualities(self, noun: str) -> set[str]:
        """Adjectives that stand right before a noun (singular) in any caption."""
        found = set()
        for caption in self.captions:
            tokens = tag(caption)
            for before, token in pairwise(tokens):
                if before.tag == "JJ" and stem(token.text) == noun:
                    found.add(before.lower)
        return found


def bare(text: str) -> str:
    """Words alone, in lower case."""
    return " ".join(token.lower for token in tag(text) if token.is_word)


def grammatical(caption: str, text: str) -> bool:
    """Whether a change did not double a word."""
    return _doubled(text) <= _doubled(caption)


def _doubled(text: str) -> set[str]:
    words = bare(text).split()
    return {word for word, following in pairwise(words) if word == following}


@lru_cache(maxsize=65_536)
def same_kind(one: str, other: str) -> bool:
    """Whether two nouns (singular) may name one thing, as far as the lists go."""
    if one == other:
        return True
    persons = one in PERSONS and other in PERSONS
    listed = any(one in line and other in line for line in SAME_KIND)
    return (persons or listed) and other not in opposed(one)


@lru_cache(maxsize=65_536)
def opposed(noun: str) -> tuple[str, ...]:
    """Nouns (singular) that a thing cannot be besides this one, by the lists."""
    return tuple(other for line in OBJECTS if noun in line for other in line if other != noun)


def unsaid(noun: str, scene: Scene) -> bool:
    """Whether a noun (singular) is in no caption, and is no other word for anything in them."""
    if noun in VAGUE or noun in scene.words:
        return False
    if noun in PERSONS:
        return noun in GENDERS and not GENDERS[noun] & scene.words
    return not any(same_kind(noun, word) for word in scene.words)


def absent(noun: str, scene: Scene, vocabulary: Vocabulary, beside: str) -> bool:
    """Whether a noun (singular) is most likely not to be seen where another one is.

    Besides being unsaid, it hardly ever tells of the same image as the other one in the manifest. Where that
    cannot be counted, and for persons always, the lists of opposites must vouch for it.
    """
    if not unsaid(noun, scene):
        return False
    attraction = None if noun in PERSONS else vocabulary.attraction(noun, beside)
    return noun in opposed(beside) if attraction is None else attraction <= ALIKE


def colour_clash(colour: str, scene: Scene) -> bool:
    """Whether a colour, or one that is taken for it, is named in any caption."""
    near = {other for line in COLOUR_FAMILIES if colour in line for other in line} | {colour}
    return bool(near & scene.words)


def noun_behind(tokens: Sequence[Token], at: int) -> Token | None:
    """The last noun of the noun phrase that goes on behind an adjective here, or begins behind a preposition."""
    head = None
    for place, token in enumerate(tokens[at + 1 :]):
        if token.is_noun:
            head = token
        elif head is not None or not (token.tag in INSIDE or (place == 0 and token.tag in ("DT", "PRP$"))):
            break
    return head
