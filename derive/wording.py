"""A caption with some of its words taken out, changed or added to, spaced and capitalised as it was."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from vlpipe.derive.tagging import Token

ARTICLES = ("a", "an")
NO_BLANK_BEFORE = frozenset(".,;:!?)%")
# Sounds, not letters: "an hour", "a unicycle".
VOWEL = re.compile(
    r"(?!(?i:uni(?!nt|m|d|nf|nh|ns|nv)|us[eu]|eu|ew|one\b|once\b|ut[ei]))(?i:[aeiou])|(?i:hour|honest|heir|x-)"
    r"|[FHLMNRSX](?:[A-Z0-9-]|\b)"
)


def article(word: str) -> str:
    """`an` before a word that begins with a vowel sound, else `a`."""
    return "an" if VOWEL.match(word) else "a"


def reworded(caption: str, tokens: Sequence[Token], changes: Mapping[int, str], *, articles: bool = True) -> str:
    """The caption with each token of `changes` replaced by its text, or taken out where that is "".

    Tokens are spaced as they were, with one blank where something was taken out between them, and a sentence
    that began with a capital still does. With `articles`, an a or an right before a change is made to fit.
    """
    left = [at for at in range(len(tokens)) if changes.get(at) != ""]
    words = [changes.get(at, tokens[at].text) for at in left]
    parts: list[str] = []
    for place, at in enumerate(left):
        parts.append(_blank(caption, tokens, left[place - 1], at) if place else "")
        following = left[place + 1] if place + 1 < len(left) else None
        fits = articles and following is not None and (following != at + 1 or following in changes)
        word = words[place]
        if fits and word.lower() in ARTICLES and at not in changes:
            word = _like(article(words[place + 1]), word)
        parts.append(word)
    return _capital("".join(parts), tokens, left, changes)


def _blank(caption: str, tokens: Sequence[Token], before: int, at: int) -> str:
    if at == before + 1:
        return caption[tokens[before].end : tokens[at].start]
    glued = tokens[at].text in NO_BLANK_BEFORE and not caption[tokens[at].start - 1].isspace()
    return "" if glued else " "


def _capital(text: str, tokens: Sequence[Token], left: Sequence[int], changes: Mapping[int, str]) -> str:
    changed = bool(left) and (left[0] != 0 or 0 in changes)
    return _like(text, tokens[0].text) if changed and text[:1].islower() else text


def _like(word: str, model: str) -> str:
    """A word with the first letter as large as the model's."""
    return word[0].upper() + word[1:] if model[0].isupper() else word
