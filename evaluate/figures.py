"""Figures of retrieval: recalls with intervals, and how much a rank depends on the caption."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from vlpipe.evaluate.answers import Evaluation, file_stem
from vlpipe.evaluate.contracts import IntArray
from vlpipe.evaluate.metrics.retrieval import T2I, per_image_sensitivity
from vlpipe.evaluate.results import intervals_of
from vlpipe.foundation.files import digest

# Okabe and Ito's colours, told apart with every kind of colour vision; the order keeps lightness varied.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
STYLES = ("-", "--", ":")
MOST = len(COLOURS) * len(STYLES)
LOOK: Any = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
TITLES = {"i2t": "Image to text", "t2i": "Text to image"}


def draw(evaluations: Sequence[Evaluation], folder: Path) -> list[Path]:
    """Both figures as PNG files; returns their paths. All evaluations are of one task and split.

    With more than 21 runs the first 21 are shown, which is what the colours and line styles can tell apart.
    """
    evaluations = evaluations[:MOST]
    with mpl.rc_context(LOOK):
        return [
            save(recalls(evaluations), path_of(folder, evaluations, "recall")),
            save(sensitivity(evaluations), path_of(folder, evaluations, "caption-sensitivity")),
        ]


def path_of(folder: Path, evaluations: Sequence[Evaluation], part: str = "") -> Path:
    """Where a figure of evaluations of one task and split lies: `TASK-SPLIT-RUN[-PART].png`.

    Two runs are both named; more, or runs whose `Evaluation.apart` differ, are `N-runs-DIGITS`. What sets the
    evaluations apart from those of the run's own manifest and default settings follows the runs.
    """
    first, runs = evaluations[0], [evaluation.run for evaluation in evaluations]
    apart = [evaluation.apart for evaluation in evaluations]
    alike = len(set(apart)) == 1
    if len(runs) > 2 or not alike:
        runs = [f"{len(runs)}-runs", digest([runs, apart])[:8]]
    return folder / f"{file_stem(first.task, first.split, *runs, first.apart if alike else '', part)}.png"


def save(figure: Figure, path: Path) -> Path:
    """The figure as a PNG file; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Software": None})  # no version: equal input, equal bytes
    return path


def both(first: Evaluation, other: Evaluation) -> tuple[IntArray, IntArray]:
    """Rows of the queries that two runs share, in each of them, both in the order of the queries' ids."""
    ids = first.rows.query_ids, other.rows.query_ids
    _, here, there = np.intersect1d(*ids, assume_unique=True, return_indices=True)
    return here, there


def masks_nothing(evaluation: Evaluation) -> bool:
    """Whether a run with latents keeps them all under every text: it rebuilds images and edits none."""
    return next(iter(evaluation.entries.values())).provenance.config.get("mask") == "none"


def recalls(evaluations: Sequence[Evaluation]) -> Figure:
    """Recall@K both ways, a group of bars for each K, bootstrap intervals as error bars."""
    figure = Figure(figsize=(10, 4.4))
    axes = figure.subplots(1, 2, sharey=True)
    for side, (direction, title) in zip(axes, TITLES.items(), strict=True):
        _recall_bars(side, evaluations, direction)
        side.set_title(title)
        side.grid(axis="x", visible=False)
    axes[0].set_ylabel("queries with a match in the top K (%)")
    entries = [entry for evaluation in evaluations for entry in evaluation.entries.values()]
    _legend(figure, axes[0], evaluations, f"lines: {intervals_of(entries)}")
    return figure


def _legend(figure: Figure, axes: Axes, evaluations: Sequence[Evaluation], note: str) -> None:
    """The runs' names under the figure, and what the marks mean."""
    entries = axes.get_legend_handles_labels()
    title = f"{evaluations[0].task}, split {evaluations[0].split}; {note}"
    figure.legend(*entries, loc="outside lower center", ncols=min(3, len(evaluations)), title=title)


def _recall_bars(axes: Axes, evaluations: Sequence[Evaluation], direction: str) -> None:
    start = f"{direction}_recall@"
    entries = evaluations[0].entries
    ks = sorted(int(m.removeprefix(start)) for m in entries if m.startswith(start) and m[-1].isdigit())
    width = 0.8 / len(evaluations)
    few = len(evaluations) <= 3
    look: Any = {"fontsize": 9} if few else {"fontsize": min(9, 60 * width), "rotation": 90}
    for place, evaluation in enumerate(evaluations):
        found = [evaluation.entries[f"{start}{k}"] for k in ks]
        values = np.array([100 * entry.value for entry in found])
        ends = np.array([[100 * end for end in entry.interval or [entry.value] * 2] for entry in found])
        at = np.arange(len(ks)) + (place - (len(evaluations) - 1) / 2) * width
        hatch = ("", "//", "..")[place // len(COLOURS)]
        axes.bar(
            at, values, 0.92 * width, color=_colour(place), label=evaluation.run, hatch=hatch, edgecolor="white"
        )
        errors = np.abs(ends.T - values)
        axes.errorbar(at, values, errors, fmt="none", ecolor="#333333", elinewidth=1, capsize=min(3, 12 * width))
        for x, value, high in zip(at, values, ends[:, 1], strict=True):
            text = f"{value:.1f}"
            if few or text == "0.0":  # no bar is no gap
                axes.annotate(text, (x, high), (0, 3), textcoords="offset points", ha="center", **look)
    axes.set_xticks(np.arange(len(ks)), [f"Recall@{k}" for k in ks])
    axes.set_ylim(bottom=0)


def sensitivity(evaluations: Sequence[Evaluation]) -> Figure:
    """Share of images whose RankStd and WorstGap stay under a value (TPC, Eq. 67), a curve for each run."""
    figure = Figure(figsize=(10, 4.4))
    axes = figure.subplots(1, 2, sharey=True)
    names = ("RankStd: standard deviation", "WorstGap: largest minus smallest")
    found = [_per_image(evaluation) for evaluation in evaluations]
    for side, (axis, name) in enumerate(zip(axes, names, strict=True)):
        for place, (evaluation, values) in enumerate(zip(evaluations, found, strict=True)):
            _curve(axis, values[side], evaluation.run, place)
        axis.set_xscale("symlog", linthresh=1)
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.set_xlim(left=0)
        axis.set_ylim(0, 102)
        axis.set_title(name)
        axis.set_xlabel("ranks, over the captions of one image")
    axes[0].set_ylabel("images at or under (%)")
    _legend(figure, axes[0], evaluations, "dots: means over images")
    return figure


def _curve(axes: Axes, values: np.ndarray, label: str, place: int) -> None:
    """A distribution function, with a dot at the mean."""
    if not len(values):
        return
    ordered = np.sort(values)
    share = 100 * np.arange(1, len(ordered) + 1) / len(ordered)
    style = STYLES[place // len(COLOURS)]
    start = (np.concatenate([[0.0], ordered]), np.concatenate([[0.0], share]))
    axes.step(*start, where="post", color=_colour(place), linestyle=style, linewidth=1.8, label=label)
    mean = float(ordered.mean())
    height = 100 * float(np.mean(ordered <= mean))
    axes.plot(mean, height, "o", color=_colour(place), markeredgecolor="white", markersize=8, clip_on=False)


def _per_image(evaluation: Evaluation) -> tuple[np.ndarray, np.ndarray]:
    rows = evaluation.rows
    asked = rows.values["direction"] == T2I
    return per_image_sensitivity(rows.values["rank"][asked], rows.image[asked])


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]
