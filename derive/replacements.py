"""Hard negatives by replacing one thing, quality or relation (the replace family of SugarCrepe)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vlpipe.derive.changes import Change, Scene, absent, colour_clash, noun_behind, opposed
from vlpipe.derive.lexicon import COLOURS
from vlpipe.derive.opposites import (
    ADJECTIVES,
    AGES,
    GROWN,
    MOVING,
    NEARLY,
    OWN_COLOURS,
    PERSONS,
    PLAIN_COLOURS,
    RELATIONS,
    SAME_POSTURE,
    SAYING,
    SLOPING,
    STILL,
    VAGUE,
)
from vlpipe.derive.spans import Span, find_spans
from vlpipe.derive.tagging import Token, tag
from vlpipe.derive.vocabulary import LEAST, Vocabulary, is_head, place, stem

WHERE = ("on", "in", "near", "beside", "by", "at", "behind", "under", "outside", "inside", "next", "and", "while")
ARTICLED = ("a", "DT", "PRP$", "CD")


def replaced_objects(caption: str, scene: Scene, vocabulary: Vocabulary) -> Iterator[Change]:
    """A noun for another of the same number that fits its place and is most likely not in the picture."""
    tokens = tag(caption)
    for at, token in enumerate(tokens):
        noun = stem(token.text)
        where = place(tokens, at)
        if not is_head(tokens, at) or noun in VAGUE or where[1] == "of":  # "a body of water"
            continue
        articled = where[2] in ARTICLED or token.tag == "NNS"
        opposites = [vocabulary.form(other, token.tag) for other in opposed(noun)] if articled else []
        listed = [word for word in opposites if word and vocabulary.goes_behind(word, tokens, at)]
        fitting = [] if noun in PERSONS else vocabulary.fitting(tokens, at)
        for word in sorted({*listed, *fitting}):
            if absent(stem(word), scene, vocabulary, noun):
                yield Change("replace_obj", token.text, word, {at: word})


def replaced_attributes(caption: str, scene: Scene, vocabulary: Vocabulary) -> Iterator[Change]:
    """A colour for another that its noun is known to have, or an adjective or number for its opposite."""
    tokens = tag(caption)
    for at, token in enumerate(tokens):
        head = noun_behind(tokens, at)
        if head is None or token.tag not in ("JJ", "CD", "JJR"):
            continue
        if token.lower in COLOURS:
            for colour in fitting_colours(stem(head.text), scene, vocabulary):
                yield Change("replace_att", token.text, colour, {at: colour})
        elif not _holds_together(tokens, at, stem(head.text)):
            for other in ADJECTIVES.get(token.lower, ()):
                if vocabulary.count[other] >= LEAST and not _nearly_said(other, scene):
                    yield Change("replace_att", token.text, other, {at: other})


def fitting_colours(noun: str, scene: Scene, vocabulary: Vocabulary) -> list[str]:
    """Colours that captions give a noun (singular), and that nothing in the scene has, nor one taken for it.

    All such colours where they give it none; no colour for persons and their hair.
    """
    if noun in PERSONS | OWN_COLOURS:
        return []
    known = [c for c in PLAIN_COLOURS if vocabulary.count[c] >= LEAST and not colour_clash(c, scene)]
    given = any(vocabulary.qualities[colour, noun] for colour in PLAIN_COLOURS)
    return [colour for colour in known if vocabulary.qualities[colour, noun]] if given else known


def replaced_relations(caption: str, scene: Scene, vocabulary: Vocabulary) -> Iterator[Change]:
    """A preposition for its opposite, or a posture for a movement and the reverse."""
    tokens = tag(caption)
    for span in find_spans(caption, "relations"):
        words = " ".join(token.lower for token in tokens[span.start : span.end])
        for other in RELATIONS.get(words, ()):
            if _may_turn(tokens, span, words) and not _said(other, scene):
                edits = {span.start: other, **dict.fromkeys(range(span.start + 1, span.end), "")}
                yield Change("replace_rel", words, other, edits)
    yield from _replaced_postures(tokens, scene)


def _may_turn(tokens: Sequence[Token], span: Span, words: str) -> bool:
    """Whether a preposition means a place here: "on the hillside", "up to his neck", "plays with" do not turn."""
    behind = noun_behind(tokens, span.end - 1)
    if behind is None or tokens[span.end].tag == "PRP$":
        return False
    if words in ("up", "down"):
        return stem(behind.text) in SLOPING
    if words in ("into", "out of") and span.start and tokens[span.start - 1].lower in SAYING:
        return False
    if words in ("with", "without"):
        return span.start > 0 and tokens[span.start - 1].is_noun
    articled = tokens[span.end].tag == "DT"  # no "cheer on cyclists", no "on fire"
    return (words != "on" or articled) and not behind.lower.endswith(("side", "day", "top", "back"))


def _replaced_postures(tokens: Sequence[Token], scene: Scene) -> Iterator[Change]:
    for at, token in enumerate(tokens):
        form = {"VBG": 2, "VBZ": 1, "VBP": 0}.get(token.tag)
        if form is None or (form != 0 and not token.lower.endswith(("s", "ing"))):
            continue
        for these, those in ((STILL, MOVING), (MOVING, STILL)):
            if any(token.lower == verb[form] for verb in these) and _in_place(tokens, at):
                if any(word in scene.words for verb in those for word in verb) or SAME_POSTURE & scene.words:
                    continue  # one who runs may jump as well
                for verb in those:
                    if verb[0] != "swim" or (at + 1 < len(tokens) and tokens[at + 1].lower == "in"):
                        yield Change("replace_rel", token.text, verb[form], {at: verb[form]})


def _in_place(tokens: Sequence[Token], at: int) -> bool:
    """Whether what follows a verb says where at most, so that any posture goes with it."""
    after = tokens[at + 1] if at + 1 < len(tokens) else None
    return after is None or after.text in (".", ",") or after.lower in WHERE


def _said(relation: str, scene: Scene) -> bool:
    """Whether a caption uses the relation: then it may be true as well."""
    return any(f" {relation} " in f" {caption.lower()} " for caption in scene.captions)


def _nearly_said(adjective: str, scene: Scene) -> bool:
    """Whether a caption has an adjective or one that says nearly the same."""
    near = {other for line in NEARLY if adjective in line for other in line} | {adjective}
    return bool(near & scene.words)


def _holds_together(tokens: Sequence[Token], at: int, noun: str) -> bool:
    """Whether an adjective belongs to its noun or a number to others: "a young child", "two or three"."""
    beside = [tokens[place].lower for place in (at - 1, at + 1) if 0 <= place < len(tokens)]
    ranges = tokens[at].tag == "CD" and any(word in ("or", "to", "-", "of") for word in beside)
    return ranges or (tokens[at].lower in AGES and noun not in GROWN)
