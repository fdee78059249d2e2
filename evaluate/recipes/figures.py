"""A recipe's figures: heat maps of what is best by layer, and a table's numbers as bars beside the paper's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vlpipe.evaluate.figures import COLOURS, LOOK, save
from vlpipe.evaluate.recipes.comparison import Line, percent
from vlpipe.evaluate.recipes.filling import key_of
from vlpipe.evaluate.recipes.recipe import Bars, Best, Recipe
from vlpipe.evaluate.recipes.running import Made
from vlpipe.evaluate.tables import is_share
from vlpipe.foundation.errors import UnknownNameError, UsageError

Cell = tuple[str, str, str]  # panel, x, y
Means = Mapping[tuple[Cell, str], float]  # by cell and value of what is chosen


def draw(recipe: Recipe, made: Made, lines: Sequence[Line], stem: Path) -> list[Path]:
    """PNG files `STEM-1.png`, ...; returns their paths. Raises `UsageError` where an axis or step is not there."""
    paths = []
    with mpl.rc_context(LOOK):
        for place, asked in enumerate(recipe.figures, start=1):
            figure = bars(asked, lines) if isinstance(asked, Bars) else best(asked, recipe, made)
            paths.append(save(figure, stem.with_name(f"{stem.name}-{place}.png")))
    return paths


def means_of(asked: Best, made: Made, step: str) -> Means:
    """Mean over the seeds of the metric in one eval step, in percent where it is a share."""
    axes = (asked.panel, asked.x, asked.y, asked.choose)
    found: dict[tuple[Cell, str], list[float]] = {}
    for one in (one for one in made.found if one.step == step):
        missing = [axis for axis in axes if axis not in one.keys]
        if missing:
            raise UnknownNameError(f"axis of step '{step}'", missing[0], one.keys)
        panel, x, y, value = (one.keys[axis] for axis in axes)
        if asked.metric not in one.metrics:
            raise UnknownNameError(f"number of task '{one.task}' of run '{one.run}'", asked.metric, one.metrics)
        found.setdefault(((panel, x, y), value), []).append(percent(asked.metric, one.metrics[asked.metric]))
    if not found:
        raise UsageError(f"figure '{asked.title}': no numbers of step '{step}'; expected a named eval step")
    return {key: float(np.mean(values)) for key, values in found.items()}


def chosen(by: Means, of: Means) -> dict[Cell, tuple[str, float]]:
    """By cell: the value with the highest mean in `by`, of equal ones the first, and the mean in `of` at it."""
    picked: dict[Cell, str] = {}
    for (cell, value), mean in by.items():
        if cell not in picked or mean > by[cell, picked[cell]]:
            picked[cell] = value
    return {cell: (value, of[cell, value]) for cell, value in picked.items()}


def best(asked: Best, recipe: Recipe, made: Made) -> Figure:
    """Which value is best above, and the number that it gives below."""
    cells = chosen(means_of(asked, made, asked.by), means_of(asked, made, asked.of))
    panels, xs, ys, values = (_entries(recipe, n) for n in (asked.panel, asked.x, asked.y, asked.choose))
    figure = Figure(figsize=(1.2 + 3.1 * len(panels), 7.4))
    rows = figure.subplots(2, len(panels), squeeze=False)
    share = is_share(asked.metric)
    for place, panel in enumerate(panels):
        here = [[cells[panel, x, y] for x in xs] for y in ys]
        ranked = np.array([[values.index(value) for value, _ in row] for row in here], dtype=float)
        means = np.array([[mean for _, mean in row] for row in here])
        names = [value for row in here for value, _ in row]
        _heat(rows[0][place], ranked, names, "viridis", (0.0, len(values) - 1.0))
        numbers = [f"{mean:.{1 if share else 3}f}" for mean in means.ravel()]
        _heat(rows[1][place], means, numbers, "cividis", (float(means.min()), float(means.max())))
        rows[0][place].set_title(f"{panel}: best {asked.choose}")
        rows[1][place].set_title(f"{panel}: {asked.metric}{' (%)' if share else ''}")
    for axes in rows.ravel():
        axes.set_xticks(range(len(xs)), xs)
        axes.set_yticks(range(len(ys)), ys)
        axes.set_xlabel(asked.x.replace("_", " "))
        axes.set_ylabel(asked.y.replace("_", " "))
    figure.suptitle(asked.title)
    return figure


def _entries(recipe: Recipe, name: str) -> list[str]:
    """Names of a list setting's entries, in its order."""
    found = recipe.settings.get(name)
    if not isinstance(found, list):
        raise UnknownNameError("setting that is a list", name, recipe.settings)
    return [key_of(entry) for entry in found]


def _heat(axes: Axes, grid: np.ndarray, texts: Sequence[str], colours: str, ends: tuple[float, float]) -> None:
    """One heat map with a text in each cell."""
    low, high = ends
    axes.imshow(grid, cmap=colours, vmin=low, vmax=max(high, low + 1e-9), origin="lower")
    for (y, x), text in zip(np.ndindex(*grid.shape), texts, strict=True):
        light = grid[y, x] > (low + high) / 2
        axes.text(x, y, text, ha="center", va="center", color="black" if light else "white")
    axes.grid(visible=False)


def bars(asked: Bars, lines: Sequence[Line]) -> Figure:
    """Our numbers as bars with deviations, the paper's as black lines across them."""
    own = [line for line in lines if line.table == asked.numbers]
    if not own:
        raise UsageError(f"figure '{asked.title}': no table is named '{asked.numbers}'")
    panels = list(dict.fromkeys(line.column.partition(": ")[0] for line in own))
    figure = Figure(figsize=(10, 3.1 * ((len(panels) + 1) // 2)))
    grid = figure.subplots((len(panels) + 1) // 2, 2, squeeze=False).ravel()
    for axes, panel in zip(grid, panels, strict=False):
        _group(axes, [line for line in own if line.column.partition(": ")[0] == panel])
        axes.set_title(panel)
    for axes in grid[len(panels) :]:
        axes.remove()
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, title=asked.title)
    return figure


def _group(axes: Axes, lines: Sequence[Line]) -> None:
    rows = list(dict.fromkeys(" & ".join(line.row) for line in lines))
    names = list(dict.fromkeys(line.column for line in lines))
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        found = {" & ".join(line.row): line for line in lines if line.column == name}
        at = np.arange(len(rows)) + (place - (len(names) - 1) / 2) * width
        ours = [found[row].ours for row in rows]
        heights = [0.0 if one is None else one.mean for one in ours]
        spans = [0.0 if one is None or one.std is None else one.std for one in ours]
        axes.bar(
            at,
            heights,
            0.92 * width,
            yerr=spans,
            color=COLOURS[place % len(COLOURS)],
            label=name.partition(": ")[2],
        )
        for x, figure in zip(at, _papers(found, rows), strict=True):
            if figure is not None:
                axes.hlines(figure, x - width / 2, x + width / 2, colors="black", linewidth=2)
    axes.plot([], [], color="black", linewidth=2, label="the paper")
    axes.set_xticks(range(len(rows)), [row.replace(" & ", "\n") for row in rows], fontsize=8)
    axes.grid(axis="x", visible=False)


def _papers(found: Mapping[str, Line], rows: Sequence[str]) -> Iterator[float | None]:
    return (found[row].paper for row in rows)
