"""The classes of a set: labels, the words that stand for them in prompts, and coarser classes above them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlpipe.foundation.config import Config
from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.prompts import Templates, prompt_rows, templates_of
from vlpipe.manifests.readers import read_records

SHOWN = 3


class ClassConfig(Config):
    """What every set of classes can be asked for."""

    templates: Templates = (
        "generic"  # of prompts: imagenet, simple, generic, none, or a list with {} for the class
    )
    classes: str | None = None  # a file that gives labels other words in prompts
    superclasses: str | None = None  # a file that gives labels a coarser class


@dataclass(frozen=True)
class Classes:
    """Labels to the letter in their order, each with its words, and its superclass where there is one."""

    names: Mapping[str, str]
    templates: Sequence[str] = ()
    superclasses: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def configured(
        cls, config: ClassConfig, names: Mapping[str, str], superclasses: Mapping[str, str] | None = None
    ) -> Classes:
        """The set's own words and superclasses, with the files of the settings over them.

        Words from a file may leave labels out; superclasses from a file must cover every label. Raises
        `VlpipeError` for a file that is not there, has another form, or leaves out a superclass.
        """
        words = dict(names)
        if config.classes is not None:
            found = label_table(Path(config.classes), "name")
            _check_known(config.classes, found, names)
            words |= {label: name for label, name in found.items() if label in names}
        above = dict(superclasses or {})
        if config.superclasses is not None:
            above = label_table(Path(config.superclasses), "superclass")
            left_out = [label for label in names if label not in above]
            if left_out:
                raise VlpipeError(
                    f"'{config.superclasses}' has no superclass for {len(left_out)} of {len(names)} labels: "
                    f"{_shown(left_out)}; add them"
                )
        return cls(words, templates_of(config.templates), above)

    def image(self, image_id: str, path: str, split: str | None, label: str, **attributes: str) -> Row:
        """One row of images.parquet, with the class's words and superclass as attributes."""
        known = {"class": self.names[label]}
        if label in self.superclasses:
            known["superclass"] = self.superclasses[label]
        row = {"image_id": image_id, "path": path, "split": split, "label": label}
        return row | {"attributes": known | attributes}

    def prompts(self) -> Iterator[Row]:
        """Every class's prompts: rows of texts.parquet."""
        return prompt_rows(self.names, self.templates)


def label_table(path: Path, column: str) -> dict[str, str]:
    """One text a label: of a JSON object `{label: text}`, or of a .csv, .tsv, .jsonl or .parquet table with the
    columns `label` and `column` (others are not read).

    Raises `VlpipeError` that names the file: not there, another form, a label twice, a value that is no text.
    """
    if path.suffix.lower() == ".json":
        pairs: Iterable[tuple[Any, Any]] = _json_object(path)
    else:
        pairs = [(record.get("label"), record.get(column)) for _, record in read_records(path)]
    table: dict[str, str] = {}
    for label, value in pairs:
        if not (isinstance(label, str) and isinstance(value, str) and label and value.strip()):
            raise VlpipeError(
                f"'{path}': label {label!r} has {column} {value!r}; expected the columns label and {column}, or a "
                "JSON object, with a text for each"
            )
        if label in table:
            raise VlpipeError(f"'{path}': label '{label}' stands twice; expected each once")
        table[label] = value
    return table


def _json_object(path: Path) -> list[tuple[str, Any]]:
    try:
        found = json.loads(path.read_bytes().decode("utf-8-sig"), object_pairs_hook=list)
    except FileNotFoundError:
        raise VlpipeError(f"'{path}' does not exist; give a JSON object, or a table of labels") from None
    except ValueError as error:
        raise VlpipeError(f"'{path}' is not JSON: {error}") from None
    if not isinstance(found, list) or not all(isinstance(pair, tuple) for pair in found):
        raise VlpipeError(f"'{path}' is no JSON object; expected one that gives each label a text")
    return found


def _check_known(path: str, found: Mapping[str, str], names: Mapping[str, str]) -> None:
    """A file for other labels would change nothing, silently."""
    if not found.keys() & names.keys():
        raise VlpipeError(
            f"'{path}' names none of the {len(names)} labels ({_shown(list(names))}), but {_shown(list(found))}"
        )


def _shown(labels: Sequence[str]) -> str:
    rest = len(labels) - SHOWN
    return ", ".join(labels[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
