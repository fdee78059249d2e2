"""Figures of cosines before and after editing (TEVI, Figs. 5 right and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from vlpipe.evaluate.answers import Evaluation
from vlpipe.evaluate.figures import COLOURS, LOOK, save

BINS = 60


def draw(evaluations: Sequence[Evaluation], folder: Path) -> list[Path]:
    """One PNG file a run; returns their paths."""
    with mpl.rc_context(LOOK):
        return [save(histogram(e), folder / f"{e.task}-{e.split}-{e.run}.png") for e in evaluations]


def histogram(evaluation: Evaluation) -> Figure:
    """How many captions have each cosine with their image, a curve a column."""
    columns = evaluation.rows.values
    every = np.concatenate(list(columns.values()))
    edges = np.histogram_bin_edges(every, BINS) if len(every) else np.linspace(0, 1, BINS + 1)
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for colour, (name, values) in zip(COLOURS, columns.items(), strict=False):
        axes.hist(values, bins=edges.tolist(), color=colour, alpha=0.6, label=f"{name}, mean {values.mean():.3f}")
    axes.set(xlabel="cosine of an image and its caption", ylabel="captions", title=evaluation.run)
    axes.legend()
    return figure
