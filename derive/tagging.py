"""Words of a caption with their parts of speech (Penn Treebank tags), the same on every machine.

The lexicon and rules are those of Brill's tagger, as TextBlob ships them; what captions do differently from
newspapers (no verb but a participle, "a dog leaps", a capital at the start) is mended here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version

from vlpipe.derive.lexicon import (
    AUXILIARIES,
    COLOURS,
    FUNCTION_TAGS,
    NOT_ATTRIBUTES,
    SINGULAR_IN_S,
    SUBJECT_PRONOUNS,
)
from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.brill import brill

CODE = 1  # version: raised when the same caption would be tagged otherwise
WORDS = re.compile(r"\d+(?:[.,:]\d+)*(?:st|nd|rd|th|s)?(?![^\W\d_])|[^\W\d_]+(?:[-'\u2019]?[^\W_]+)*|\S")
AFTER_VERB = frozenset({"DT", "IN", "TO", "RB", "RP", "PRP", "PRP$", "CC", "CD", "VBG", ".", ",", ""})
FINITE = frozenset({"VBZ", "VBP", "VBD", "VB", "MD"})


@dataclass(frozen=True)
class Token:
    """One word or mark: `caption[start:end] == text`; `tag` is a Penn Treebank tag."""

    text: str
    tag: str
    start: int
    end: int

    @property
    def lower(self) -> str:
        """As it stands inside a sentence."""
        return self.text.lower()

    @property
    def is_word(self) -> bool:
        """Not a punctuation mark."""
        return self.text[0].isalnum()

    @property
    def is_noun(self) -> bool:
        """Common or proper, one or many."""
        return self.tag in ("NN", "NNS", "NNP", "NNPS")


Tags = list[str]


def identity() -> str:
    """What decides the tags, for a manifest's settings."""
    return f"textblob {version('textblob')}, rules {CODE}"


@lru_cache(maxsize=4096)
def tag(caption: str) -> tuple[Token, ...]:
    """Every word and mark of a caption in order. Raises `VlpipeError` where TextBlob is not installed."""
    places = [(found.group(), *found.span()) for found in WORDS.finditer(caption)]
    if not places:
        return ()
    words = _lowered([word for word, _, _ in places])
    tags = [found for _, found in brill().tag(" ".join(words), tokenize=False)]
    if len(tags) != len(places):  # the library took a mark for two; never seen, but a shift would be silent
        raise VlpipeError(f"caption {caption!r}: {len(places)} words came back with {len(tags)} tags")
    tags = _mended([word.lower() for word in words], tags)
    return tuple(Token(*place[:1], name, *place[1:]) for place, name in zip(places, tags, strict=True))


def known_as(word: str) -> str | None:
    """The lexicon's tag of a word as it is written, None for a word that it does not have."""
    found: str | None = dict.get(brill().parser.lexicon, word)
    return found


def plain_singular(word: str) -> str:
    """The singular of a plural noun; another word in -s may come out shorter, so compare both sides alike."""
    found: str = brill().inflect.singularize(word)
    return found


def _lowered(words: Sequence[str]) -> list[str]:
    """The sentence's first word in lower case where that is a word: a capital there names nobody."""
    first = words[0]
    small = first.lower()
    if first != "I" and (known_as(small) or not known_as(first)):
        return [small, *words[1:]]
    return list(words)


def _mended(words: list[str], tags: Tags) -> Tags:
    """What Brill's rules get wrong in captions, one pass from left to right."""
    after = [*tags[1:], ""]
    for at, word in enumerate(words):
        before = tags[:at]
        last, previous = (before[-1], words[at - 1]) if at else ("", "")
        following = words[at + 1] if at + 1 < len(words) else ""
        tags[at] = _word_rule(word, tags[at], last, previous, following, after[at])
        if tags[at] == "NNS" and after[at] in AFTER_VERB and _singular_subject(words[:at], before):
            tags[at] = "VBZ"
        elif tags[at] == "NN" and after[at] in AFTER_VERB - {".", ",", "CC", ""} and _plural_subject(before):
            tags[at] = "VBP"
    return tags


def _word_rule(word: str, tag: str, last: str, previous: str, following: str, after: str) -> str:
    if word in NOT_ATTRIBUTES and tag.startswith("JJ"):
        return "DT"
    if word in FUNCTION_TAGS:
        return "RB" if FUNCTION_TAGS[word] == "IN" and after in (".", ",", "", "CC", "IN") else FUNCTION_TAGS[word]
    if word in COLOURS:
        return "JJ" if after in ("NN", "NNS", "NNP", "JJ", "CC", "VBN") or tag not in ("JJ", "NN") else tag
    if word.endswith("ing") and tag == "NN" and last != "DT":
        doing = after in ("DT", "PRP$") or (after in ("IN", "RB", "RP", "TO") and last not in ("JJ", "VBG"))
        return "VBG" if doing or last in ("VBZ", "VBP", "VBD") else tag
    if tag == "JJ" and word.endswith("ing") and last in ("VBZ", "VBP", "VBD") and after not in ("NN", "NNS"):
        return "VBG"
    if tag in ("VB", "VBP", "VBN") and last in ("DT", "PRP$") and after not in ("NN", "NNS", "JJ", "CC"):
        return "NN"
    if tag == "VBG" and last in ("DT", "PRP$", "JJ") and after in (".", "", ","):
        return "NN"
    if tag == "VB" and last in ("NNS", "CC"):
        return "VBP"
    return _form_rule(word, tag, last, previous, following, after)


def _form_rule(word: str, tag: str, last: str, previous: str, following: str, after: str) -> str:
    if word == "top" and last in ("JJ", "NN"):
        return "NN"
    if "-" in word and tag == "JJ" and after not in ("NN", "NNS") and known_as(word.rsplit("-", 1)[1]) == "NN":
        return "NN"
    if tag == "RB" and last in ("DT", "PRP$") and (following == "of" or after in (".", "", ",")):
        return "NN"
    if tag in ("NN", "VB") and following.endswith(("colored", "coloured", "haired")):
        return "JJ"
    if tag == "VBZ" and last in ("CD", "JJ", "NN") and word not in AUXILIARIES and after == "VBG":
        tag = "NNS"
    if tag == "VBZ" and last == "JJ" and word not in AUXILIARIES and previous not in COLOURS:
        tag = "NNS"
    singular = word.endswith(("ss", "us", "is")) or word in SINGULAR_IN_S
    return "NNS" if tag == "NN" and word.endswith("s") and not singular else tag


def _singular_subject(words: Sequence[str], before: Tags) -> bool:
    """Whether a word in -s here is a verb: right behind a noun phrase that is one thing, with no verb yet."""
    if not before or before[-1] not in ("NN", "NNP"):
        return bool(before) and words[-1] in SUBJECT_PRONOUNS
    start = len(before) - 1
    while start and before[start - 1] in ("NN", "NNP", "JJ", "VBN", "VBG"):
        start -= 1
    article = words[start - 1] if start else ""
    if article in ("a", "an", "one", "another", "each", "every"):
        return True
    nouns = before.count("NN") + before.count("NNP")
    return nouns == 1 and not (FINITE | {"IN", "NNS", "CD", "VBG"}) & set(before)


def _plural_subject(before: Tags) -> bool:
    return before[-1:] == ["NNS"] and not (FINITE | {"VBG", "IN"}) & set(before)
