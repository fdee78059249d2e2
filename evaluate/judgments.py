"""Human ratings of pairs of an image and a text, from a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.readers import read_records

IMAGE, TEXT, OWNER, INDEX, RATING = "image", "text", "caption_image", "caption_index", "rating"


@dataclass(frozen=True)
class Judgment:
    """One pair by ids, and its rating by each rater, in the file's order."""

    image_id: str
    text_id: str
    ratings: tuple[float, ...]


@dataclass(frozen=True)
class Judgments:
    """All pairs of a file; `raters` are the columns of their ratings."""

    raters: tuple[str, ...]
    pairs: tuple[Judgment, ...]

    @classmethod
    def read(cls, path: Path) -> Judgments:
        """From a .csv, .tsv, .jsonl or .parquet table with the columns `image` (its id), `text` (its id) or
        `caption_image` and `caption_index` (the text `IMAGE#INDEX`, as Flickr8k's are), and `rating...` of each
        rater, numbers.

        Raises `VlpipeError` that names file and line.
        """
        pairs: dict[tuple[str, str], Judgment] = {}
        raters: tuple[str, ...] = ()
        for line, record in read_records(path):
            where = f"'{path}' line {line}"
            found = tuple(name for name in record if name.startswith(RATING))
            raters = raters or found
            if not found or found != raters:
                raise VlpipeError(f"{where} has the columns {', '.join(record)}; expected {RATING}_1, ... in all")
            one = Judgment(
                _text(record, IMAGE, where),
                _text_id(record, where),
                tuple(_number(record[name], name, where) for name in raters),
            )
            if (one.image_id, one.text_id) in pairs:
                raise VlpipeError(f"{where}: image '{one.image_id}' with text '{one.text_id}' stands twice")
            pairs[one.image_id, one.text_id] = one
        if not pairs:
            raise VlpipeError(f"'{path}' holds no ratings")
        return cls(raters, tuple(pairs.values()))


def _text_id(record: Mapping[str, Any], where: str) -> str:
    if TEXT in record:
        return _text(record, TEXT, where)
    return f"{_text(record, OWNER, where)}#{_text(record, INDEX, where)}"


def _text(record: Mapping[str, Any], column: str, where: str) -> str:
    value = record.get(column)
    if value is None or not str(value).strip():
        raise VlpipeError(
            f"{where} has no {column}; expected the columns {IMAGE}, {TEXT} (or {OWNER} and {INDEX}) and {RATING}s"
        )
    return str(value)


def _number(value: Any, column: str, where: str) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise VlpipeError(f"{where}: {column} is {value!r}; expected a number")
    return found
