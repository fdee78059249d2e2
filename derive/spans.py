"""Which words of a caption say an attribute, a relation or a count (TPC, appendix C.5)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from vlpipe.derive.lexicon import (
    BE,
    COLOURS,
    COMPOUNDS,
    COUNT_PHRASES,
    COUNT_WORDS,
    MATERIALS,
    NOT_ATTRIBUTES,
    NOT_RELATIONS,
    PARTICLES,
    PREPOSITION_PHRASES,
    SHADES,
)
from vlpipe.derive.tagging import Token, tag

Kind = Literal["attributes", "relations", "counts"]
KINDS: tuple[Kind, ...] = get_args(Kind)
NOUN_PHRASE = ("DT", "PRP$", "JJ", "JJR", "NN", "NNS", "NNP", "CD", "PRP", "VBN")
PHRASES = tuple(sorted((tuple(p.split()) for p in PREPOSITION_PHRASES), key=len, reverse=True))
COUNTS = tuple(sorted((tuple(p.split()) for p in COUNT_PHRASES), key=len, reverse=True))


@dataclass(frozen=True, order=True)
class Span:
    """Words that stand in the caption: tokens `start` to `end`, the end not included."""

    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def text(self, caption: str, tokens: Sequence[Token]) -> str:
        """To the letter."""
        return caption[tokens[self.start].start : tokens[self.end - 1].end]


def find_spans(caption: str, kind: Kind) -> list[Span]:
    """The spans of a kind, in order, none over another; the tagger's, without a language model."""
    return list(FINDERS[kind](tag(caption)))


def core_spans(caption: str) -> list[Span]:
    """What a core-only view leaves out: attributes of things, counts but "one", adverbs in -ly (TPC, B.2).

    An adjective that is the whole predicate ("is wet") stays: without it the caption would say nothing.
    """
    tokens = tag(caption)
    found = [span for span in counts(tokens) if tokens[span.start].lower != "one"]
    for span in attributes(tokens):
        named = span.start and tokens[span.start - 1].tag == "IN"  # "a man in black"
        if tokens[span.start].lower not in BE and (named or _noun_follows(tokens, span.end)):
            found.append(span)
    found += [
        Span(at, at + 1) for at, token in enumerate(tokens) if token.tag == "RB" and token.lower.endswith("ly")
    ]
    return _apart(found)


def locate(caption: str, items: Sequence[str]) -> tuple[list[Span], list[str]]:
    """Where some phrases stand in a caption, and those that are turned down.

    A phrase counts where it occurs to the letter, in whole words, and not over another; each time it is given the
    next place is taken.
    """
    tokens = tag(caption)
    starts = {token.start: at for at, token in enumerate(tokens)}
    ends = {token.end: at + 1 for at, token in enumerate(tokens)}
    found: list[Span] = []
    refused: list[str] = []
    for item in items:
        places = (m.start() for m in re.finditer(re.escape(item), caption)) if item else iter(())
        spans = (Span(starts[p], ends[p + len(item)]) for p in places if p in starts and p + len(item) in ends)
        free = next((s for s in spans if all(s.end <= f.start or s.start >= f.end for f in found)), None)
        if free is None:
            refused.append(item)
        else:
            found.append(free)
    return sorted(found), refused


def attributes(tokens: Sequence[Token]) -> Iterator[Span]:
    """Adjectives with what is said of them ("very tall", "dark blue"), participles and materials before a noun.

    With a form of "be" before it and no noun behind, that form goes along: "is wet" is one span.
    """
    at = 0
    while at < len(tokens):
        if not _is_attribute(tokens, at):
            at += 1
            continue
        start, end = at, at + 1
        degree = tokens[at - 1] if at else None
        if degree and degree.tag == "RB" and (degree.lower == "very" or degree.lower.endswith("ly")):
            start -= 1
        if tokens[at].lower in SHADES and end < len(tokens) and tokens[end].lower in COLOURS:
            end += 1
        participle = end < len(tokens) and tokens[end].tag == "VBN" and tokens[end - 1].tag.startswith("JJ")
        if participle and end + 1 < len(tokens) and (tokens[end + 1].is_noun or tokens[end + 1].tag == "JJ"):
            end += 1  # "curly haired"
        if start and tokens[start - 1].lower in BE and not _noun_follows(tokens, end):
            start -= 1
        yield Span(start, end)
        at = end


def relations(tokens: Sequence[Token]) -> Iterator[Span]:
    """Prepositions ("in front of" is one), and verbs that have an object, with their forms of "be"."""
    at = 0
    while at < len(tokens):
        end = _relation_end(tokens, at)
        if end == at:
            at += 1
            continue
        start = at
        if tokens[at].tag.startswith("VB") and at and tokens[at - 1].lower in BE:
            start -= 1  # "is holding": what is left must not say that the one is the other
        yield Span(start, end)
        at = end


def counts(tokens: Sequence[Token]) -> Iterator[Span]:
    """Numerals and quantifiers before a noun ("two", "several"), and "a group of" and its like."""
    at = 0
    while at < len(tokens):
        phrase = _matching(tokens, at, COUNTS)
        if phrase and at + phrase < len(tokens) and tokens[at + phrase].lower == "of":
            yield Span(at, at + phrase + 1)
            at += phrase + 1
            continue
        number = tokens[at].tag == "CD" or tokens[at].lower in COUNT_WORDS
        if number and _noun_follows(tokens, at + 1):
            start = at - 1 if at and tokens[at - 1].lower == "a" else at  # "a few", "a dozen"
            yield Span(start, at + 1)
        at += 1


FINDERS: Mapping[Kind, Callable[[Sequence[Token]], Iterator[Span]]] = {
    "attributes": attributes,
    "relations": relations,
    "counts": counts,
}


def _apart(spans: Sequence[Span]) -> list[Span]:
    """The same words as spans that do not lie over one another."""
    apart: list[Span] = []
    for span in sorted(spans):
        if apart and span.start < apart[-1].end:
            apart[-1] = Span(apart[-1].start, max(apart[-1].end, span.end))
        else:
            apart.append(span)
    return apart


def _is_attribute(tokens: Sequence[Token], at: int) -> bool:
    token = tokens[at]
    if token.lower in COUNT_WORDS or not token.is_word:
        return False
    after = tokens[at + 1] if at + 1 < len(tokens) else None
    if after and (token.lower, after.lower) in COMPOUNDS:
        return False
    if token.tag in ("JJ", "JJR", "JJS"):
        return not (after and after.lower == "of")  # "on top of", "the front of": a place, not a quality
    before_noun = after is not None and after.is_noun
    if token.tag == "NN" and token.lower in MATERIALS:
        return before_noun
    return token.tag in ("VBN", "VBG") and before_noun and at > 0 and tokens[at - 1].tag in ("DT", "PRP$", "JJ")


def _noun_follows(tokens: Sequence[Token], at: int) -> bool:
    """Whether a noun comes next, over adjectives, other numbers and what joins them."""
    for token in tokens[at:]:
        if token.is_noun:
            return True
        listed = token.lower in COUNT_WORDS or token.lower in NOT_ATTRIBUTES
        if token.tag not in ("JJ", "JJR", "JJS", "VBN", "CC", "CD", ",", "VBG") and not listed:
            return False
    return False


def _relation_end(tokens: Sequence[Token], at: int) -> int:
    """Where the relation that begins here ends; `at` where none does."""
    phrase = _matching(tokens, at, PHRASES)
    if phrase:
        return at + phrase
    token = tokens[at]
    if token.lower in NOT_RELATIONS:
        return at
    if token.tag in ("IN", "TO") and _noun_phrase_follows(tokens, at + 1) and not _infinitive(tokens, at):
        return at + 1
    if token.tag == "RB" and token.lower in PARTICLES and _noun_phrase_follows(tokens, at + 1):
        return at + 1  # "down the street"
    if not token.tag.startswith("VB") or token.tag == "VBN" or token.lower in BE:
        return at
    qualifies = at > 0 and tokens[at - 1].tag in ("DT", "PRP$", "JJ")  # "a smiling man"
    beside = _matching(tokens, at + 1, PHRASES) > 0  # "stands next to"
    return at + 1 if _noun_phrase_follows(tokens, at + 1) and not qualifies and not beside else at


def _infinitive(tokens: Sequence[Token], at: int) -> bool:
    return tokens[at].tag == "TO" and at + 1 < len(tokens) and tokens[at + 1].tag.startswith("VB")


def _noun_phrase_follows(tokens: Sequence[Token], at: int) -> bool:
    if at >= len(tokens) or tokens[at].tag not in NOUN_PHRASE:
        return False
    return not tokens[at].tag.startswith("JJ") or _noun_follows(tokens, at) or tokens[at].lower in COLOURS


def _matching(tokens: Sequence[Token], at: int, phrases: Sequence[tuple[str, ...]]) -> int:
    """Words of the longest of some phrases that stands here, 0 for none."""
    return next((len(p) for p in phrases if tuple(token.lower for token in tokens[at : at + len(p)]) == p), 0)
