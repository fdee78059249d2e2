"""Files of Flickr30k Entities: captions with marked phrases, and the boxes that phrases share.

A caption: `[/EN#1/people Two young guys] with [/EN#2/bodyparts shaggy hair] ...`; the number is a chain, one thing
in all captions of the photo. Boxes: a Pascal VOC-like XML file whose objects name the chains that they show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from vlpipe.manifests.layouts import Layout

MARK = re.compile(r"\[/EN#(\d+)((?:/[^\s/\]]+)+) (.*?)\]")
CORNERS = ("xmin", "ymin", "xmax", "ymax")
NOTHING = "0"  # the chain of phrases that are about nothing to be seen


@dataclass(frozen=True)
class Phrase:
    """One marked phrase; `first_word` counts the caption's words from 0."""

    text: str
    chain: str
    types: Sequence[str]
    first_word: int


@dataclass(frozen=True)
class Sentence:
    """A caption without its marks, to the letter, and its phrases in order."""

    text: str
    phrases: Sequence[Phrase]


@dataclass(frozen=True)
class Drawn:
    """What is drawn on a photo: its width and height in pixels, and boxes `x0, y0, x1, y1` by chain."""

    size: tuple[int, int]
    boxes: Mapping[str, list[list[float]]]


def parse_sentence(line: str) -> Sentence:
    """One line of a sentence file. Raises `ValueError` where a mark is not closed."""
    parts, phrases, end = [], [], 0
    for mark in MARK.finditer(line):
        parts.append(line[end : mark.start()])
        chain, types, text = mark.groups()
        words = len("".join(parts).split())
        phrases.append(Phrase(text, chain, types.strip("/").split("/"), words))
        parts.append(text)
        end = mark.end()
    parts.append(line[end:])
    text = "".join(parts)
    if "/EN#" in text:
        raise ValueError(text)
    return Sentence(text, phrases)


def read_sentences(path: Path, layout: Layout) -> list[Sentence]:
    """A photo's captions. Raises `VlpipeError` that names the line whose marks cannot be read."""
    sentences = []
    for number, line in enumerate(layout.lines(path), start=1):
        try:
            sentences += [parse_sentence(line)] if line.strip() else []
        except ValueError:
            raise layout.refuse(f"'{path}' line {number}: a mark is not [/EN#NUMBER/TYPE words]") from None
    return sentences


def read_boxes(path: Path, layout: Layout) -> Drawn:
    """A photo's boxes. Raises `VlpipeError` for a file that is not there or is not of this form."""
    try:
        tree = ElementTree.parse(path).getroot()
        size = int(tree.findtext("size/width", "")), int(tree.findtext("size/height", ""))
        boxes: dict[str, list[list[float]]] = {}
        for item in tree.iterfind("object"):
            corners = item.find("bndbox")
            if corners is None:
                continue
            x0, y0, x1, y1 = (int(corners.findtext(name, "")) for name in CORNERS)
            for name in item.iterfind("name"):
                boxes.setdefault(name.text or "", []).append([x0 - 1, y0 - 1, x1, y1])
    except FileNotFoundError:
        raise layout.refuse(f"'{path}' does not exist") from None
    except (ElementTree.ParseError, ValueError) as error:
        raise layout.refuse(
            f"'{path}' has no size, name or {'/'.join(CORNERS)} that can be read ({error})"
        ) from None
    return Drawn(size, boxes)


def chain_boxes(drawn: Drawn, chain: str) -> list[list[float]]:
    """A chain's boxes, none where it is drawn nowhere."""
    return [] if chain == NOTHING else drawn.boxes.get(chain, [])
