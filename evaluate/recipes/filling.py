"""From a recipe's steps to command lines: what stands in braces is filled in.

`{folder}` is a setting. In a step over the list `pair`, `{pair}` is one entry of it and `{pair.text}` a field of
the entry; elsewhere it is the whole list. `{seed,}` joins a list by commas, as --seeds and --sweep want it; a word
with `{layer.output*}` is repeated for every entry. `{sae}` is the run of the step of that name, for the same
entries of the axes that both steps have; `{jam*}` repeats the word for each of its runs. `{live.encoder}` is the
spec of the encoder that a train-backbone step trained.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from vlpipe.evaluate.recipes.recipe import Recipe, Step
from vlpipe.foundation.errors import UnknownNameError, UsageError

PLACE = re.compile(r"\{([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?([,*]?)\}")
Axes = Mapping[str, Any]  # one entry of each axis
RunsOf = Callable[[str, Axes], Sequence[str]]  # what a named step made, `sae` or `live.encoder`, for some entries


@dataclass(frozen=True)
class Command:
    """One command line of a step, not yet filled in."""

    step: Step
    axes: Axes

    @property
    def keys(self) -> dict[str, str]:
        """The entries' names."""
        return {name: key_of(entry) for name, entry in self.axes.items()}


def key_of(entry: Any) -> str:
    """What an entry of an axis is called: its `name`, or itself."""
    return str(entry.get("name", entry) if isinstance(entry, Mapping) else entry)


def commands(recipe: Recipe) -> Iterator[Command]:
    """Every command of every step, in order. Raises `UsageError` for `over` something that has no entries."""
    for step in recipe.steps:
        for name in step.over:
            entries = recipe.settings.get(name)
            if not isinstance(entries, list) or not entries:
                raise UsageError(
                    f"step '{step.run.strip()}': over '{name}': expected a setting that is a list with one entry "
                    f"or more, got {entries!r}"
                )
        for entries in product(*(recipe.settings[name] for name in step.over)):
            yield Command(step, dict(zip(step.over, entries, strict=True)))


def filled(command: Command, recipe: Recipe, runs: RunsOf) -> list[str]:
    """The words of a command line, without `vlpipe`. Raises `UnknownNameError`, `UsageError`."""
    fill = _Filling(dict(recipe.settings), command.axes, runs, {s.name for s in recipe.steps if s.name})
    words = [word for part in _split(command.step.run) for word in fill.words(part)]
    options = [["--set", f"{key}={toml(fill.value(value))}"] for key, value in command.step.set.items()]
    return [*words, *(word for option in options for word in option)]


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"step '{line.strip()}': {error}; expected words as a shell reads them") from None


@dataclass(frozen=True)
class _Filling:
    """Settings, the entries at hand, and the runs that there are."""

    settings: Mapping[str, Any]
    axes: Axes
    runs: RunsOf
    steps: set[str]

    def words(self, text: str) -> list[str]:
        """One word, or several where something in it is repeated."""
        repeated = [place for place in PLACE.finditer(text) if place[3] == "*"]
        if not repeated:
            return [PLACE.sub(lambda place: self._text(place), text)]
        if len(repeated) > 1:
            raise UsageError(f"'{text}': expected one '*' in a word")
        place = repeated[0]
        values = dict.fromkeys(_plain(value) for value in self._listed(place))
        return [word for v in values for word in self.words(text[: place.start()] + v + text[place.end() :])]

    def value(self, given: Any) -> Any:
        """A setting's value: what is a place and nothing else keeps its type."""
        if isinstance(given, list):
            return [self.value(item) for item in given]
        if isinstance(given, Mapping):
            return {key: self.value(item) for key, item in given.items()}
        if not isinstance(given, str):
            return given
        place = PLACE.fullmatch(given)
        if place and not place[3]:
            return self._found(place)
        return PLACE.sub(lambda place: self._text(place), given)

    def _text(self, place: re.Match[str]) -> str:
        if place[3] == ",":
            return ",".join(toml(value) for value in self._listed(place))
        return _plain(self._found(place))

    def _listed(self, place: re.Match[str]) -> list[Any]:
        if place[1] in self.steps:
            return self._made(place)
        found = self._found(place)
        return found if isinstance(found, list) else [found]

    def _made(self, place: re.Match[str]) -> list[str]:
        return list(self.runs(f"{place[1]}.{place[2]}" if place[2] else place[1], self.axes))

    def _found(self, place: re.Match[str]) -> Any:
        name, field, _ = place.groups()
        if name in self.steps:
            found = self._made(place)
            if len(found) != 1:
                raise UsageError(
                    f"'{place[0]}' is {len(found)} {'encoders' if field else 'runs'}; expected one: put in `over` "
                    f"what they differ in, or write '{place[0][:-1]}*}}' for all"
                )
            return found[0]
        known = {**self.settings, **self.axes}
        if name not in known:
            raise UnknownNameError("setting or step", name, known.keys() | self.steps)
        if field is None:
            return known[name]
        one = known[name]
        return [_field(name, field, entry) for entry in one] if isinstance(one, list) else _field(name, field, one)


def _field(name: str, field: str, entry: Any) -> Any:
    fields = entry if isinstance(entry, Mapping) else {}
    if field not in fields:
        raise UnknownNameError(f"field of '{name}'", field, fields)
    return fields[field]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else toml(value)


def toml(value: Any) -> str:
    """A value in TOML's grammar on one line."""
    if isinstance(value, list):
        return f"[{', '.join(toml(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {toml(item)}' for key, item in value.items())}}}"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else json.dumps(key, ensure_ascii=False)
