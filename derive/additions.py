"""Hard negatives by adding a thing or a quality (the add family of SugarCrepe)."""

from __future__ import annotations

from collections.abc import Iterator

from vlpipe.derive.changes import Change, Scene, colour_clash, unsaid
from vlpipe.derive.lexicon import COLOURS
from vlpipe.derive.opposites import PERSONS, PLAIN_COLOURS, VAGUE, WORN
from vlpipe.derive.replacements import fitting_colours
from vlpipe.derive.tagging import tag
from vlpipe.derive.vocabulary import Vocabulary, is_head, kind, phrase_start, stem
from vlpipe.derive.wording import article

NEVER = VAGUE | PERSONS | WORN
RARE = 0.02  # of the images: what oftener stands with a thing may do so unsaid
KNOWN = 3  # colours of a noun, before it is taken for a thing that has colours
SEEN = 30  # images of a noun, before a colour that it never has is taken for impossible


def added_attributes(caption: str, scene: Scene, vocabulary: Vocabulary) -> Iterator[Change]:
    """A colour before a noun that has no quality here: one that contradicts the colour which another caption gives
    it, else one that the noun never has in the manifest.
    """
    tokens = tag(caption)
    for at, token in enumerate(tokens):
        noun = stem(token.text)
        if not is_head(tokens, at) or noun in VAGUE or tokens[at - 1].tag != "DT" or at == 0:
            continue
        for colour in _wrong_colours(noun, scene, vocabulary):
            yield Change("add_att", token.text, f"{colour} {token.text}", {at: f"{colour} {token.text}"})


def _wrong_colours(noun: str, scene: Scene, vocabulary: Vocabulary) -> list[str]:
    colours = fitting_colours(noun, scene, vocabulary)
    if scene.qualities(noun) & COLOURS:
        return colours
    if len(scene.captions) > 1:  # what others leave out as well is too uncertain
        return []
    known = sum(bool(vocabulary.qualities[colour, noun]) for colour in PLAIN_COLOURS)
    if known < KNOWN or vocabulary.count[noun] < SEEN:
        return []
    never = (c for c in PLAIN_COLOURS if not vocabulary.qualities[c, noun] and vocabulary.count[c] >= SEEN)
    return [colour for colour in never if noun not in PERSONS and not colour_clash(colour, scene)]


def added_objects(caption: str, scene: Scene, vocabulary: Vocabulary) -> Iterator[Change]:
    """`with a NOUN` behind the first noun phrase, of things that captions put there, but rarely."""
    tokens = tag(caption)
    first = next((at for at, token in enumerate(tokens) if token.is_noun), len(tokens))
    while first + 1 < len(tokens) and tokens[first + 1].is_noun:
        first += 1  # "a basketball player"
    if first + 1 >= len(tokens) or tokens[first + 1].tag not in ("VBZ", "VBP", "VBG", "IN"):
        return
    owner = kind(tokens[first].text)
    if tokens[first].tag != "NN" or not owner or tokens[phrase_start(tokens, first)].tag != "DT":
        return
    if tokens[first + 1].lower in ("with", "of", "in", "wearing"):
        return
    for noun in carried(vocabulary, owner):
        attraction = vocabulary.attraction(noun, stem(tokens[first].text))
        if unsaid(noun, scene) and (attraction is None or attraction < 1):
            words = f"with {article(noun)} {noun}"
            yield Change("add_obj", tokens[first].text, words, {first: f"{tokens[first].text} {words}"})


def carried(vocabulary: Vocabulary, owner: str) -> list[str]:
    """Things that captions put behind "with a" of a person, but in few images; sorted. Animals are given what they
    have themselves as well: that alone is too little, and a thing that is only ever added gives negatives away.
    """
    words = {
        noun for (whose, noun), times in vocabulary.carried.items() if whose in ("person", owner) and times > 1
    }
    return sorted(w for w in words if vocabulary.count[w] <= RARE * vocabulary.images and stem(w) not in NEVER)
