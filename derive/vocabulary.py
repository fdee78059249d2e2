"""Words of a manifest's own captions: where they stand, and which ones tell of the same pictures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from vlpipe.derive.lexicon import BE
from vlpipe.derive.opposites import ANIMALS, PERSONS
from vlpipe.derive.tagging import Token, plain_singular, tag

MOST = 2_000  # nouns whose company is counted: 16 MB
MASS = 0.2  # of its uses a noun is without an article, if it may go without one
IRREGULAR = {"children": "child", "people": "person", "feet": "foot", "teeth": "tooth", "mice": "mouse"}
SHORT = 3  # letters: a word in -s that is no plural, "as", "gas"
LEAST = 3  # times that a word must occur to be put in
LITERAL = (
    "IN",
    "TO",
    "CC",
    "RP",
    "RB",
    "VB",
    "VBD",
    "VBG",
    "VBN",
    "VBP",
    "VBZ",
)  # tags of words that choose nouns
Place = tuple[str, str, str, str]  # tag, what is before the noun phrase, its article, what is behind the noun


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """One form for singular and plural, in lower case."""
    small = word.lower()
    if small in IRREGULAR:
        return IRREGULAR[small]
    if small.endswith("men"):
        return small.removesuffix("men") + "man"
    plural = small.endswith("s") and len(small) > SHORT and not small.endswith(("ss", "us", "is"))
    return plain_singular(small) if plural else small


def word_forms(caption: str) -> frozenset[str]:
    """All words of a caption, in lower case: as they are written, and singular."""
    words = [token.lower for token in tag(caption) if token.is_word]
    return frozenset(words) | frozenset(map(stem, words))


class Vocabulary:
    """Counts over images: how often a word occurs, in which places, and with which other nouns.

    `images` is the captions of each image; a word counts once an image.
    """

    def __init__(self, images: Iterable[Sequence[str]]) -> None:
        self.images = 0
        self.captions = 0
        self.count: Counter[str] = Counter()  # images a word occurs in, as it is written
        self.places: defaultdict[Place, Counter[str]] = defaultdict(Counter)
        self.forms: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)  # of (singular, tag)
        self.bare: Counter[str] = Counter()  # times without an article
        self.behind: Counter[tuple[str, str]] = Counter()  # (noun, what is before its phrase), as written
        self.carried: Counter[tuple[str, str]] = Counter()  # (kind of owner, noun behind its "with a"), as written
        self.qualities: Counter[tuple[str, str]] = Counter()  # (adjective, noun behind it)
        nouns: list[frozenset[str]] = []
        frequent: Counter[str] = Counter()
        for captions in images:
            self.images += 1
            self.captions += len(captions)
            found = frozenset(self._read(captions))
            frequent.update(sorted(found))  # a set's order changes with the process, and with it who is cut off
            nouns.append(found)
        self.index = {word: place for place, (word, _) in enumerate(frequent.most_common(MOST))}
        self.together = np.zeros((len(self.index), len(self.index)), np.int32)
        for found in nouns:
            rows = sorted(self.index[word] for word in found if word in self.index)
            self.together[np.ix_(rows, rows)] += 1

    def _read(self, captions: Sequence[str]) -> set[str]:
        """Count one image's words; returns its nouns, singular."""
        written: set[str] = set()
        nouns: set[str] = set()
        for caption in captions:
            tokens = tag(caption)
            written.update(token.lower for token in tokens)
            for at, token in enumerate(tokens):
                if is_head(tokens, at):
                    nouns.add(stem(token.text))
                    where = place(tokens, at)
                    self.places[where][token.lower] += 1
                    self.behind[token.lower, where[1]] += 1
                    owner = tokens[phrase_start(tokens, at) - 2] if where[1:3] == ("with", "a") else None
                    self.carried[kind(owner.text) if owner else "", token.lower] += 1
                    self.bare[token.lower] += not where[2]
                    self.forms[stem(token.text), token.tag][token.lower] += 1
                    if at and tokens[at - 1].tag == "JJ":
                        self.qualities[tokens[at - 1].lower, stem(token.text)] += 1
        self.count.update(written)
        return nouns

    def attraction(self, one: str, other: str) -> float | None:
        """How much oftener than by chance two nouns (singular) tell of one image; None where it cannot be told.

        1 is chance. Fewer than 2 images expected, a noun that is not counted, or one caption an image (where two
        words for one thing never meet) say nothing.
        """
        if one not in self.index or other not in self.index or self.captions < 2 * self.images:
            return None
        a, b = self.index[one], self.index[other]
        expected = float(self.together[a, a]) * float(self.together[b, b]) / self.images
        return float(self.together[a, b]) / expected if expected >= 2 else None

    def form(self, noun: str, tag_name: str) -> str | None:
        """A noun (singular) in the singular (NN) or plural (NNS) as captions write it; None where they do not."""
        written = self.forms.get((noun, tag_name))
        return min(written, key=lambda word: (-written[word], word)) if written else None

    def goes_behind(self, noun: str, tokens: Sequence[Token], at: int) -> bool:
        """Whether a noun as it is written may stand in the phrase here: "on a beach", not "on a stadium"."""
        before = phrase_start(tokens, at) - 1
        preposition = before >= 0 and tokens[before].tag in ("IN", "TO")
        return not preposition or self.behind[noun, tokens[before].lower] > 0

    def fitting(self, tokens: Sequence[Token], at: int) -> list[str]:
        """Nouns that occur in the place of a noun: number, article, and the words on both sides; sorted."""
        where = place(tokens, at)
        words = sorted(word for word, times in self.places[where].items() if times >= LEAST)
        if where[0] == "NN" and not where[2]:  # "in water", but never "on swing"
            words = [word for word in words if self.bare[word] >= MASS * self.forms[stem(word), "NN"][word]]
        return words


def kind(noun: str) -> str:
    """Whether a noun names a person, an animal, or something else ("")."""
    name = stem(noun)
    return "person" if name in PERSONS else "animal" if name in ANIMALS else ""


def is_head(tokens: Sequence[Token], at: int) -> bool:
    """Whether a token is a common noun by itself: no part of a compound, no name."""
    if tokens[at].tag not in ("NN", "NNS"):
        return False
    beside = [tokens[place] for place in (at - 1, at + 1) if 0 <= place < len(tokens)]
    return not any(token.is_noun or token.text in ("-", "/", "'") or token.tag == "POS" for token in beside)


def phrase_start(tokens: Sequence[Token], at: int) -> int:
    """Where the noun phrase begins that ends here: its article, or its first adjective or number."""
    start = at
    while start and (
        tokens[start - 1].tag in ("JJ", "JJR", "JJS", "CD", "NN", "VBN") or _joins(tokens, start - 1)
    ):
        start -= 1
    return start - 1 if start and tokens[start - 1].tag in ("DT", "PRP$") else start


def place(tokens: Sequence[Token], at: int) -> Place:
    """What decides which nouns fit here."""
    start = phrase_start(tokens, at)
    first = tokens[start]
    article = "a" if first.lower in ("a", "an") else first.tag if first.tag in ("DT", "PRP$", "CD") else ""
    return tokens[at].tag, _beside(tokens, start - 1), article, _beside(tokens, at + 1)


def _beside(tokens: Sequence[Token], at: int) -> str:
    """A neighbour: verbs and function words as they are, others by their tag, the ends of the caption alike."""
    if not 0 <= at < len(tokens) or tokens[at].tag == ".":
        return "."
    token = tokens[at]
    return token.lower if token.tag in LITERAL or token.lower in BE else token.tag


def _joins(tokens: Sequence[Token], at: int) -> bool:
    """Whether a comma or "and" here stands between two adjectives: "a black and white dog"."""
    adjective = ("JJ", "JJR", "JJS")
    inside = 0 < at < len(tokens) - 1 and tokens[at - 1].tag in adjective and tokens[at + 1].tag in adjective
    return inside and (tokens[at].lower == "and" or tokens[at].text == ",")
