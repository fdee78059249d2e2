"""Hard negatives by swapping two things or two qualities of one caption (the swap family of SugarCrepe)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from vlpipe.derive.changes import Change, Scene, noun_behind, same_kind
from vlpipe.derive.lexicon import COLOURS
from vlpipe.derive.opposites import ADJECTIVES, SYMMETRIC, VAGUE
from vlpipe.derive.tagging import Token, tag
from vlpipe.derive.vocabulary import Vocabulary, is_head, phrase_start, stem

BETWEEN = ("VBZ", "VBG", "VBP", "IN", "RP", "RB", "TO")


@dataclass(frozen=True)
class _Phrase:
    """A noun phrase: tokens `start` to `head`, both included."""

    start: int
    head: int


def swapped_objects(caption: str, scene: Scene, vocabulary: Vocabulary) -> Iterator[Change]:
    """Two whole noun phrases of the same number, where a verb or preposition that has a direction joins them."""
    tokens = tag(caption)
    phrases = [_Phrase(phrase_start(tokens, at), at) for at in range(len(tokens)) if is_head(tokens, at)]
    for one, other in pairwise(phrases):
        joint = tokens[one.head + 1 : other.start]
        if joint and _directed(joint) and _may_swap(tokens, one, other):
            yield _swap("swap_obj", tokens, (one.start, one.head), (other.start, other.head))


def swapped_attributes(caption: str, scene: Scene, vocabulary: Vocabulary) -> Iterator[Change]:
    """Two adjectives of one kind (colours, sizes, ages) that belong to nouns of different kinds."""
    tokens = tag(caption)
    places = [
        at for at, token in enumerate(tokens) if token.tag == "JJ" and _kind(token) and not _joined(tokens, at)
    ]
    for one, other in combinations(places, 2):
        nouns = noun_behind(tokens, one), noun_behind(tokens, other)
        if None in nouns or _kind(tokens[one]) != _kind(tokens[other]) or tokens[one].lower == tokens[other].lower:
            continue
        first, second = (stem(noun.text) for noun in nouns if noun is not None)
        said = tokens[other].lower in scene.qualities(first) or tokens[one].lower in scene.qualities(second)
        if not same_kind(first, second) and not said:
            yield _swap("swap_att", tokens, (one, one), (other, other))


def _directed(joint: Sequence[Token]) -> bool:
    """Verbs and prepositions only, at least one of which does not work both ways."""
    if not all(token.tag in BETWEEN for token in joint):
        return False
    meaning = [token for token in joint if token.lower not in ("is", "are", "being")]
    return bool(meaning) and not any(token.lower in SYMMETRIC for token in meaning)


def _may_swap(tokens: Sequence[Token], one: _Phrase, other: _Phrase) -> bool:
    first, second = tokens[one.head], tokens[other.head]
    articles = tokens[one.start].tag == "DT" and tokens[other.start].tag == "DT"
    plural = first.tag == "NNS" == second.tag
    names = stem(first.text), stem(second.text)
    whole = first.tag == second.tag and (articles or plural) and not same_kind(*names)
    part_of = any(start and tokens[start - 1].lower == "of" for start in (one.start, other.start))
    return whole and not part_of and not VAGUE & set(names)


def _swap(rule: str, tokens: Sequence[Token], one: tuple[int, int], other: tuple[int, int]) -> Change:
    """Exchange two runs of tokens; the first stands at the caption's start in lower case unless it is a name."""
    texts = [" ".join(_inside(token, at) for at, token in _run(tokens, span)) for span in (one, other)]
    edits = {one[0]: texts[1], other[0]: texts[0]}
    for start, end in (one, other):
        edits |= dict.fromkeys(range(start + 1, end + 1), "")
    return Change(rule, texts[0], texts[1], edits)


def _run(tokens: Sequence[Token], span: tuple[int, int]) -> list[tuple[int, Token]]:
    return list(enumerate(tokens))[span[0] : span[1] + 1]


def _inside(token: Token, at: int) -> str:
    """As a word stands inside a sentence."""
    return token.lower if at == 0 and token.tag not in ("NNP", "NNPS") else token.text


def _kind(token: Token) -> str:
    if token.lower in COLOURS:
        return "colour"
    return "other" if token.lower in ADJECTIVES else ""


def _joined(tokens: Sequence[Token], at: int) -> bool:
    """One of several qualities of a thing: "black and white"."""
    beside = [tokens[place] for place in (at - 1, at + 1) if 0 <= place < len(tokens)]
    return any(token.tag == "CC" or token.text == "," or token.lower in COLOURS for token in beside)
