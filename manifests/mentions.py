"""Which of a list of things a text names: whole words, longest name first, whatever the case, one or many.

The rule of ProtoLIP's lexical matching (section 3.2 and appendix G), as METHODS settles it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

IRREGULAR = {
    "person": "people", "man": "men", "woman": "women", "child": "children", "mouse": "mice", "knife": "knives",
    "sheep": "sheep", "goose": "geese", "foot": "feet", "tooth": "teeth", "calf": "calves", "loaf": "loaves",
    "shelf": "shelves", "leaf": "leaves", "scarf": "scarves", "policeman": "policemen", "fireman": "firemen",
}  # fmt: skip


@dataclass(frozen=True)
class Mention:
    """A thing that a text names: `text[start:end] == words`."""

    thing: str
    words: str
    start: int
    end: int


class Mentions:
    """Finds things by their names, `names[thing]`, each in its given form and as a plural."""

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self.things: dict[str, list[str]] = {}
        for thing, aliases in names.items():
            for form in dict.fromkeys(form for alias in aliases for form in (alias, plural(alias))):
                self.things.setdefault(" ".join(form.casefold().split()), []).append(thing)
        longest = sorted(self.things, key=lambda form: (-len(form), form))
        words = "|".join(r"\s+".join(re.escape(word) for word in form.split()) for form in longest)
        # A hyphen joins words: "dog-house" names no dog.
        self.pattern = re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE)

    def find(self, text: str) -> Iterator[Mention]:
        """Mentions from left to right; none overlaps another, but a name of several things gives one for each."""
        for found in self.pattern.finditer(text):
            for thing in self.things[" ".join(found.group().casefold().split())]:
                yield Mention(thing, found.group(), *found.span())


def plural(name: str) -> str:
    """The name with its last word for many: `teddy bear` -> `teddy bears`."""
    *before, last = name.split(" ")
    return " ".join([*before, _plural_word(last)])


def _plural_word(word: str) -> str:
    if word in IRREGULAR:
        return IRREGULAR[word]
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return f"{word}es"
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}s"
