"""What a recipe file holds: what it needs, its settings, its commands, and the paper's figures."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from vlpipe.foundation.config import Config, read_toml
from vlpipe.foundation.errors import UnknownNameError, UsageError

SHELF = Path(str(files("vlpipe.manifests"))) / "recipes"
FOLDER = "folder"  # the setting that says where everything goes
LIKE = "like"
ADDED = ("needs", "steps")  # lists whose own entries come after those of the recipe that one is like
EXTRA = "extra_forbidden"  # pydantic's word for a key that is none
NONE = "-"  # in a row of the paper: it gives no figure there


class Need(Config):
    """A folder or file that somebody must have got first; `setting` says where it lies."""

    what: str
    setting: str
    source: str  # where it is published


class Step(Config):
    """One command line of vlpipe, without `vlpipe`, for every combination of the settings in `over`.

    `set` holds settings of the command, which become its --set options. A step of train-head or eval with a `name`
    is one whose runs or numbers others refer to.
    """

    run: str
    name: str | None = None
    over: list[str] = Field(default=[])
    set: dict[str, Any] = Field(default={})


class Column(Config):
    """One number of an evaluation, `on` some values of some axes: `{title, metric, on = {task = "add"}}`."""

    title: str
    metric: str
    on: dict[str, Any] = Field(default={})


class Numbers(Config):
    """A table of the paper beside ours: numbers of the eval step `of`, a line for each value of the axes `rows`.

    A row of `paper` is the axes' values and then a figure for each column, "-" where the paper has none. Axes that
    neither rows nor columns name must be in `mean`: those are averaged over. Shares are shown in percent.
    """

    title: str
    of: str
    task: str | None = None  # where the step has several
    rows: list[str] = Field(default=[])
    columns: list[Column] = Field(min_length=1)
    mean: list[str] = Field(default=["seed"])
    paper: list[list[Any]] = Field(default=[])

    @model_validator(mode="after")
    def _widths(self) -> Self:
        expected = len(self.rows) + len(self.columns)
        for row in self.paper:
            if len(row) != expected:
                raise ValueError(f"row {row} of '{self.title}': expected {expected} entries, got {len(row)}")
            figures = row[len(self.rows) :]
            if any(f != NONE and (isinstance(f, bool) or not isinstance(f, int | float)) for f in figures):
                raise ValueError(f"row {row} of '{self.title}': expected numbers, or '{NONE}' where there is none")
        return self


class Best(Config):
    """Two rows of heat maps over the axes `x` and `y`, a panel for each value of `panel`: which value of `choose`
    is best by the mean of `metric` in the eval step `by`, and the mean at that value in the eval step `of`.
    """

    kind: Literal["best"]
    title: str
    by: str
    of: str
    metric: str
    x: str
    y: str
    choose: str
    panel: str


class Bars(Config):
    """A table's numbers as bars, ours filled and the paper's as a line: a group for each row, and a panel for each
    start of the columns' titles, which read `PANEL: BAR`.
    """

    kind: Literal["bars"]
    title: str
    numbers: str  # title of the table


class Recipe(Config):
    """One file. `paper` is the title of the paper; `settings` are defaults that `--set` changes."""

    title: str
    paper: str
    reproduces: str
    about: str = ""
    hours: str = ""  # of which machine, if the paper says
    needs: list[Need] = Field(default=[])
    settings: dict[str, Any]
    steps: list[Step] = Field(min_length=1)
    numbers: list[Numbers] = Field(default=[])
    figures: list[Annotated[Best | Bars, Field(discriminator="kind")]] = Field(default=[])

    @model_validator(mode="after")
    def _settings(self) -> Self:
        if not isinstance(self.settings.get(FOLDER), str):
            raise ValueError(f"settings: expected '{FOLDER}', a text: the folder that everything goes into")
        missing = {need.setting for need in self.needs} - self.settings.keys()
        if missing:
            raise ValueError(f"needs: no setting is named '{min(missing)}'")
        return self

    @model_validator(mode="after")
    def _names(self) -> Self:
        known = set(self.settings)
        for step in self.steps:
            if step.name in known:
                raise ValueError(f"steps: '{step.name}' is the name of another step or of a setting, too")
            known |= {step.name} if step.name else set()
        return self


KEYS: Mapping[str, type[Config]] = {
    "needs": Need,
    "steps": Step,
    "numbers": Numbers,
    "columns": Column,
    "best": Best,
    "bars": Bars,
}


def names() -> list[str]:
    """The recipes that come with vlpipe."""
    return sorted(path.stem for path in SHELF.glob("*.toml"))


def load(name: str, *layers: Mapping[str, Any]) -> Recipe:
    """A recipe by name, or a file of one's own, `./mine.toml`, with later layers over its settings.

    A recipe that is `like = "NAME"` another one has all that the other has and that it does not give itself; its
    settings are over the other's, its needs and steps come after them. `like = "./other.toml"` lies beside it.

    Raises `UnknownNameError`, and `UsageError` for what does not fit.
    """
    recipe = _checked(name, _read(name))
    settings = dict(recipe.settings)
    for layer in layers:
        for key, value in layer.items():
            settings[key] = _fitting(key, value, recipe.settings)
    return recipe.model_copy(update={"settings": settings})


def _read(name: str, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """The file, with what the recipe has that it is like; `above` are those that are like this one."""
    path = Path(name)
    if str(path) in above:
        raise UsageError(f"recipe '{name}' is like itself: {', '.join(above)}")
    if path.suffix != ".toml":
        if name not in names():
            raise UnknownNameError("recipe", name, names())
        path = SHELF / f"{name}.toml"
    found = read_toml(path)
    _check_kinds(name, found)
    if LIKE not in found:
        return found
    like = found.pop(LIKE)
    other = _read(str(path.parent / like) if like.endswith(".toml") else like, (*above, str(Path(name))))
    joined = {part: other.get(part, []) + found.get(part, []) for part in ADDED}
    joined |= {"settings": other.get("settings", {}) | found.get("settings", {})}
    return other | found | joined


def _check_kinds(name: str, found: Mapping[str, Any]) -> None:
    """Raise `UsageError` for what two recipes cannot be joined by."""
    expected: list[tuple[str, type, str]] = [(part, list, f"[[{part}]]") for part in ADDED]
    expected += [("settings", dict, "[settings]"), (LIKE, str, "a recipe's name")]
    for part, kind, told in expected:
        if not isinstance(found.get(part, kind()), kind):
            raise UsageError(f"recipe '{name}': {part}: expected {told}, got {found[part]!r}")


def _checked(name: str, found: Mapping[str, Any]) -> Recipe:
    try:
        return Recipe.model_validate(found)
    except ValidationError as error:
        first = min(error.errors(), key=lambda one: one["type"] != EXTRA)  # a slip in a name explains the others
        parts = [str(part) for part in first["loc"]]
        if first["type"] == EXTRA:
            kind = next((KEYS[part] for part in reversed(parts[:-1]) if part in KEYS), Recipe)
            where = f" in {'.'.join(parts[:-1])}" if len(parts) > 1 else ""
            raise UnknownNameError(f"key{where} of recipe '{name}'", parts[-1], kind.model_fields) from None
        where = f"{'.'.join(parts)}: " if parts else ""
        raise UsageError(f"recipe '{name}': {where}{first['msg'].removeprefix('Value error, ')}") from None


def _fitting(key: str, value: Any, defaults: Mapping[str, Any]) -> Any:
    """The value; raises `UnknownNameError` for a key that is no setting, `UsageError` for another type."""
    if key not in defaults:
        raise UnknownNameError("setting of the recipe", key, defaults)
    kind = type(defaults[key])
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise UsageError(f"setting '{key}' = {value!r}: expected {kind.__name__}, as in {defaults[key]!r}")
    return value
