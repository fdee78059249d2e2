"""Captions with their words in another order: the rules of ARO's COCO-Order and Flickr30k-Order.

Yuksekgonul et al., "When and why vision-language models behave like bags-of-words", ICLR 2023, section 2.2. Words
are Treebank tokens, as there; parts of speech are those of TextBlob's tagger, where ARO has spaCy's. ARO draws
without a seed: here every caption has its own, of which neither order nor number of captions is a part.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from vlpipe.manifests.brill import brill

MARKS = re.compile(r"([.!\"()*#:;~])")
BLANKS = re.compile(r"\s{2,}")
NAMING = ("NN", "NNS", "NNP", "NNPS")  # Penn Treebank tags of nouns
DESCRIBING = ("JJ", "JJR", "JJS")
Shuffle = Callable[[list[str], list[str], random.Random], list[str]]


def plain(caption: str, words: int) -> str:
    """As ARO prints captions: lower case, without the marks .!"()*#:;~, cut to a number of words."""
    text = BLANKS.sub(" ", MARKS.sub(" ", caption.lower())).rstrip("\n").strip(" ")
    return " ".join(text.split(" ")[:words])


def reordered(caption: str, text_id: str, seed: int) -> Iterator[tuple[str, str]]:
    """The name of each rule and the caption after it. Raises `VlpipeError` where the tagger is not installed."""
    words, tags = _tagged(caption)
    for name, shuffle in RULES.items():
        yield name, " ".join(shuffle(list(words), tags, random.Random(f"{seed} {name} {text_id}")))


def _nouns_and_adjectives(words: list[str], tags: list[str], rng: random.Random) -> list[str]:
    """Nouns change places among themselves, and adjectives among themselves."""
    for kinds in (NAMING, DESCRIBING):
        words = _permuted(words, [at for at, tag in enumerate(tags) if tag in kinds], rng)
    return words


def _all_but_nouns_and_adjectives(words: list[str], tags: list[str], rng: random.Random) -> list[str]:
    """Everything that is neither noun nor adjective changes places."""
    return _permuted(words, [at for at, tag in enumerate(tags) if tag not in NAMING + DESCRIBING], rng)


def _within_trigrams(words: list[str], tags: list[str], rng: random.Random) -> list[str]:
    """Words change places within each three; the last part may be shorter."""
    parts = _trigrams(words)
    for part in parts:
        rng.shuffle(part)
    return [word for part in parts for word in part]


def _trigram_order(words: list[str], tags: list[str], rng: random.Random) -> list[str]:
    """The parts of three change places, whole."""
    parts = _trigrams(words)
    rng.shuffle(parts)
    return [word for part in parts for word in part]


RULES: Mapping[str, Shuffle] = {
    "shuffle_nouns_and_adj": _nouns_and_adjectives,
    "shuffle_allbut_nouns_and_adj": _all_but_nouns_and_adjectives,
    "shuffle_within_trigrams": _within_trigrams,
    "shuffle_trigrams": _trigram_order,
}


def _permuted(words: list[str], places: Sequence[int], rng: random.Random) -> list[str]:
    drawn = [words[at] for at in places]
    rng.shuffle(drawn)
    for at, word in zip(places, drawn, strict=True):
        words[at] = word
    return words


def _trigrams(words: list[str]) -> list[list[str]]:
    return [words[at : at + 3] for at in range(0, len(words), 3)]


def _tagged(caption: str) -> tuple[list[str], list[str]]:
    tagger = brill()
    from nltk.tokenize import NLTKWordTokenizer  # comes with it

    words = NLTKWordTokenizer().tokenize(caption)
    return words, [tag for _, tag in tagger.tag(" ".join(words), tokenize=False)]
