"""The paper's figures beside ours: rows, and the same as Markdown and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vlpipe.evaluate.bootstrap import Spread, spread
from vlpipe.evaluate.recipes.filling import key_of
from vlpipe.evaluate.recipes.recipe import NONE, Column, Numbers, Recipe
from vlpipe.evaluate.recipes.running import Found, Made
from vlpipe.evaluate.tables import is_share
from vlpipe.foundation.errors import UnknownNameError, UsageError
from vlpipe.foundation.files import canonical_json, write_atomic


@dataclass(frozen=True)
class Line:
    """One figure of the paper (None: it has none), and ours: mean and deviation over `n` runs, in its units; None
    where nothing was run or where the number is not defined, as the evaluation then told.
    """

    table: str
    row: Sequence[str]
    column: str
    metric: str
    paper: float | None
    ours: Spread | None
    values: Sequence[float]

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None or self.ours is None else self.ours.mean - self.paper


def lines_of(recipe: Recipe, made: Made) -> list[Line]:
    """All numbers. Raises `UnknownNameError` for an axis that is none, `UsageError` for a mean over things that
    differ in more than it says.
    """
    return [line for numbers in recipe.numbers for line in _table(numbers, made)]


def _table(numbers: Numbers, made: Made) -> Iterator[Line]:
    own = [f for f in made.found if f.step == numbers.of and numbers.task in (None, f.task)]
    for row in dict.fromkeys(tuple(_key(numbers, found, name) for name in numbers.rows) for found in own):
        here = [f for f in own if all(f.keys[n] == k for n, k in zip(numbers.rows, row, strict=True))]
        for place, column in enumerate(numbers.columns):
            yield _line(numbers, row, column, _figure(numbers, row, place), here)


def _key(numbers: Numbers, found: Found, axis: str) -> str:
    if axis not in found.keys:
        raise UnknownNameError(f"axis of '{numbers.of}' (rows of '{numbers.title}')", axis, found.keys)
    return found.keys[axis]


def _figure(numbers: Numbers, row: Sequence[str], place: int) -> float | None:
    """The paper's figure in a row and column."""
    width = len(numbers.rows)
    for figures in numbers.paper:
        if [key_of(key) for key in figures[:width]] == list(row):
            figure = figures[width + place]
            return None if figure == NONE else float(figure)
    return None


def _line(
    numbers: Numbers, row: Sequence[str], column: Column, paper: float | None, here: Sequence[Found]
) -> Line:
    asked = {name: key_of(entry) for name, entry in column.on.items()}
    chosen = [found for found in here if asked.items() <= found.keys.items()]
    _check_mean(numbers, column, chosen)
    values = [percent(column.metric, f.metrics[column.metric]) for f in chosen if column.metric in f.metrics]
    ours = spread(values) if values else None
    return Line(numbers.title, row, column.title, column.metric, paper, ours, values)


def percent(metric: str, value: float) -> float:
    """A share in percent, anything else as it is."""
    return 100 * value if is_share(metric) else value


def _check_mean(numbers: Numbers, column: Column, chosen: Sequence[Found]) -> None:
    kept = [{name: key for name, key in found.keys.items() if name not in numbers.mean} for found in chosen]
    varied = sorted({name for one in kept for name in one if any(one[name] != other.get(name) for other in kept)})
    if varied:
        raise UsageError(
            f"'{numbers.title}', column '{column.title}': its runs differ in {', '.join(varied)}; expected rows, "
            f"a column's `on`, or `mean` to name {'it' if len(varied) == 1 else 'them'}"
        )


def undefined(lines: Sequence[Line]) -> list[str]:
    """The columns that have no number of ours at all: nothing was run for them, or their name is wrong."""
    columns: dict[tuple[str, str, str], bool] = {}
    for line in lines:
        key = line.table, line.column, line.metric
        columns[key] = columns.get(key, False) or line.ours is not None
    return [
        f"'{table}', column '{column}': no evaluation that was run gives '{metric}'"
        for (table, column, metric), found in columns.items()
        if not found
    ]


def markdown(recipe: Recipe, lines: Sequence[Line]) -> str:
    """A table for each of the paper's."""
    parts = [f"# {recipe.title}", f"{recipe.paper}: {recipe.reproduces}."]
    parts += [recipe.about.strip()] if recipe.about else []
    for numbers in recipe.numbers:
        own = [line for line in lines if line.table == numbers.title]
        head = [*numbers.rows, "", "paper", "ours", "difference"]
        rule = [*["---"] * (len(numbers.rows) + 1), "---:", "---:", "---:"]
        rows = [[*line.row, line.column, *_cells(line)] for line in own]
        parts.append(
            f"## {numbers.title}\n\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *rows])
        )
    return (
        "\n\n".join([*parts, "Ours: mean ± sample standard deviation over n runs. Shares are in percent."]) + "\n"
    )


def _cells(line: Line) -> list[str]:
    digits = 1 if is_share(line.metric) else 3
    paper = "" if line.paper is None else f"{line.paper:g}"
    difference = "" if line.difference is None else f"{line.difference:+.{digits}f}"
    return [paper, _ours(line.ours, digits), difference]


def _ours(ours: Spread | None, digits: int) -> str:
    if ours is None:
        return "none"
    beside = "" if ours.std is None else f" ± {ours.std:.{digits}f}"
    return f"{ours.mean:.{digits}f}{beside} (n = {ours.n})"


def records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The lines as JSON values."""
    return [{**asdict(line), "difference": line.difference} for line in lines]


def write(recipe: Recipe, lines: Sequence[Line], stem: Path) -> list[Path]:
    """`STEM.md` and `STEM.json`; returns their paths."""
    told: Mapping[str, Any] = {"recipe": stem.name, "paper": recipe.paper, "settings": recipe.settings}
    table, data = (stem.with_name(f"{stem.name}.{ending}") for ending in ("md", "json"))
    write_atomic(table, markdown(recipe, lines).encode())
    write_atomic(data, (canonical_json({**told, "numbers": records(lines)}) + "\n").encode())
    return [table, data]
