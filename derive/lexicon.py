"""Closed lists of English words that captions are read with."""

from __future__ import annotations

from collections.abc import Mapping


def word_set(text: str) -> frozenset[str]:
    """Words between blanks."""
    return frozenset(text.split())


def word_lines(text: str) -> tuple[tuple[str, ...], ...]:
    """The words of each line."""
    return tuple(tuple(line.split()) for line in text.strip().splitlines())


COLOURS = word_set(
    "black white red green blue yellow orange brown gray grey pink purple tan beige gold golden silver turquoise "
    "maroon violet teal navy cream blond blonde brunette lavender magenta cyan burgundy khaki"
)
SHADES = word_set("dark light bright pale deep neon hot dirty very")  # said of the colour behind them
MATERIALS = word_set(
    "wood brick stone leather metal plastic concrete glass paper cotton denim steel iron rubber cardboard marble "
    "wool straw silk lace fur cement tile wicker"
)
# Adjectives by form that say which one, or how many, not what it is like.
NOT_ATTRIBUTES = word_set("other another same such own certain next last first second third only")
COUNT_WORDS = word_set(
    "one two three four five six seven eight nine ten eleven twelve dozen several many few some multiple various "
    "numerous both all hundreds thousands dozens"
)
COUNT_PHRASES = (  # with what follows: "of"
    "a couple", "a group", "a pair", "a lot", "lots", "a number", "a bunch", "groups", "a few", "a crowd",
    "a large group", "a small group", "a set", "a row", "pairs", "rows", "a dozen", "dozens", "hundreds",
)  # fmt: skip
PREPOSITION_PHRASES = (
    "in front of", "on top of", "next to", "in the middle of", "out of", "off of", "away from", "close to",
    "far from", "inside of", "outside of", "on the side of", "at the edge of", "on the edge of", "at the top of",
    "at the bottom of", "on the back of", "to the left of", "to the right of", "in back of", "in between",
    "along side", "up to", "down to", "ahead of", "underneath of", "in the back of", "in the front of",
)  # fmt: skip
# Prepositions that the lexicon has as adverbs or not at all; and words that are never a relation in space.
FUNCTION_TAGS: Mapping[str, str] = {
    "whilst": "IN", "while": "IN", "near": "IN", "inside": "IN", "outside": "IN", "onto": "IN", "atop": "IN",
    "behind": "IN", "beside": "IN", "alongside": "IN", "underneath": "IN", "beneath": "IN", "towards": "IN",
    "men": "NNS", "women": "NNS", "people": "NNS", "children": "NNS", "leash": "NN", "frisbee": "NN",
    "toddler": "NN", "wheelie": "NN", "tries": "VBZ", "something": "NN", "nothing": "NN", "anything": "NN",
    "everything": "NN",
}  # fmt: skip
NOT_RELATIONS = word_set("of while whilst as because if that than like whether although since though during for")
BE = word_set("is are was were be been being am 's")
AUXILIARIES = BE | word_set("has have had does do did")
SUBJECT_PRONOUNS = word_set("he she it who that which")
SINGULAR_IN_S = word_set("gas canvas lens atlas always perhaps")
PARTICLES = word_set("up down out off away over back around along together")
# Two words that are one thing: the first is no attribute of the second.
COMPOUNDS = frozenset(
    tuple(pair.split())
    for pair in (
        "hot dog", "hot dogs", "polar bear", "polar bears", "teddy bear", "teddy bears", "high school",
        "high chair", "high heels", "tight rope", "hot tub", "high five", "ice cream", "free throw",
        "electric guitar", "german shepherd", "golden retriever", "grizzly bear", "stop light",
    )
)  # fmt: skip
