"""Captions with less said: some spans taken out, and nothing else written (TPC, appendices B.2 and C.5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vlpipe.derive.lexicon import NOT_RELATIONS
from vlpipe.derive.spans import Span
from vlpipe.derive.tagging import Token, tag
from vlpipe.derive.wording import reworded

JOINING = frozenset({"and", "or", "but"})


@dataclass(frozen=True)
class Deleted:
    """A caption after deletion: `removed` are the spans asked for, `cleaned` what dangled without them.

    `removed_tokens` of `kind_tokens` tokens of the kind are gone; `cleaned` ones are not among them.
    """

    text: str
    removed: tuple[str, ...]
    cleaned: tuple[str, ...]
    removed_tokens: int
    kind_tokens: int


def pick(spans: Sequence[Span], share: float, seed: Sequence[int]) -> list[Span]:
    """Spans, drawn uniformly until they hold `share` of the tokens of all of them (C.5).

    The draw is one permutation a caption and seed: what a smaller share takes, a larger one takes too. The last
    span is taken whole, so that the share may be passed.
    """
    total = sum(map(len, spans))
    chosen: list[Span] = []
    for place in np.random.default_rng(list(seed)).permutation(len(spans)):
        if sum(map(len, chosen)) >= share * total - 1e-9:
            break
        chosen.append(spans[place])
    return sorted(chosen)


def delete(caption: str, spans: Sequence[Span], chosen: Iterable[Span], *, articles: bool = False) -> Deleted:
    """The caption without the chosen ones of its spans; unchanged, to the letter, where none is chosen.

    Cleaned up are commas, conjunctions and prepositions that join nothing any more, and blanks; no word is
    written anew, but for a and an with `articles`. Where no word would be left, nothing is removed.
    """
    tokens = tag(caption)
    taken = sorted(chosen)
    gone = {at for span in taken for at in range(span.start, span.end)}
    kind_tokens = sum(map(len, spans))
    dangling = _dangling(tokens, gone) if gone else set()
    left = [at for at in range(len(tokens)) if at not in gone | dangling]
    if not gone or not any(tokens[at].is_word for at in left):
        return Deleted(caption, (), (), 0, kind_tokens)
    removed = tuple(span.text(caption, tokens) for span in taken)
    cleaned = tuple(tokens[at].text for at in sorted(dangling))
    text = reworded(caption, tokens, dict.fromkeys(gone | dangling, ""), articles=articles)
    return Deleted(text, removed, cleaned, sum(map(len, taken)), kind_tokens)


def _dangling(tokens: Sequence[Token], gone: set[int]) -> set[int]:
    """Tokens that join nothing any more, found again and again until nothing dangles."""
    found: set[int] = set()
    while True:
        left = [at for at in range(len(tokens)) if at not in gone | found]
        more = {at for place, at in enumerate(left) if _dangles(tokens, gone | found, left, place)}
        if not more:
            return found
        # What joined qualities goes before the preposition: "in [shallow] , [reflective] water" keeps its "in".
        found.add(min(more, key=lambda at: (tokens[at].text != "," and tokens[at].lower not in JOINING, at)))


def _dangles(tokens: Sequence[Token], gone: set[int], left: Sequence[int], place: int) -> bool:
    """Whether a token is left without what it joined; only where its neighbour was taken out."""
    at = left[place]
    before = tokens[left[place - 1]] if place else None
    after = tokens[left[place + 1]] if place + 1 < len(left) else None
    if at - 1 not in gone and at + 1 not in gone:
        return False
    token = tokens[at]
    if token.text == ",":
        bound = before is None or after is None or not after.is_word
        inside = before is not None and _opens(before, tokens, gone, at)
        return bound or inside or (before is not None and before.text == ",")
    if token.lower in JOINING:
        return _joins_nothing(tokens, gone, at, before, after)
    if token.tag not in ("IN", "TO") or token.lower in NOT_RELATIONS - {"of"} or at + 1 not in gone:
        return False
    behind = tokens[left[place + 2]] if place + 2 < len(left) else None
    doing = after is not None and after.tag == "VBG" and not (behind and behind.is_noun)
    return after is None or doing or after.tag in (".", ",", "CC", "VBZ", "VBP", "IN")


def _joins_nothing(
    tokens: Sequence[Token], gone: set[int], at: int, before: Token | None, after: Token | None
) -> bool:
    """A conjunction with nothing on one side: it opened or closed a list of what was taken out."""
    if before is None or after is None or not after.is_word:
        return True
    if at - 1 in gone and (_opens(before, tokens, gone, at) or before.tag == "CD" or before.tag.startswith("VB")):
        return True
    listed = at + 1 in gone and at > 0 and tokens[at - 1].tag in ("JJ", "JJR", "VBN")
    return listed and after.is_noun


def _opens(before: Token, tokens: Sequence[Token], gone: set[int], at: int) -> bool:
    """Whether what comes before a joining token is the start of the phrase whose qualities it joined.

    Behind a preposition only where a quality follows: "in [red] , a man" is no list.
    """
    listed = at + 1 < len(tokens) and (at + 1 in gone or tokens[at + 1].tag in ("JJ", "JJR", "VBN"))
    return before.tag in ("DT", "PRP$", "CC") or (before.tag == "IN" and listed)
