"""Figures of cosines before and after editing (TEVI, Figs. 5 right, 6, B1 and B2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from vlpipe.evaluate.answers import Evaluation
from vlpipe.evaluate.figures import COLOURS, LOOK, both, masks_nothing, path_of, save
from vlpipe.evaluate.metrics.pair_cosines import AFTER, BEFORE

BINS = 60
Curves = Mapping[str, np.ndarray]  # cosines by label


def draw(evaluations: Sequence[Evaluation], folder: Path) -> list[Path]:
    """A PNG file a run, and one of the first run beside each other run that edits; returns their paths."""
    first = evaluations[0]
    with mpl.rc_context(LOOK):
        drawn = [save(histogram(alone(e), e.run), path_of(folder, [e])) for e in evaluations]
        for other in evaluations[1:]:
            curves = beside(first, other)
            if AFTER in other.rows.values and len(next(iter(curves.values()))):
                drawn.append(
                    save(histogram(curves, "captions that both runs have"), path_of(folder, [first, other]))
                )
    return drawn


def alone(evaluation: Evaluation) -> Curves:
    """A run's images as they are and, where it edits, edited; with its own texts both times."""
    columns = evaluation.rows.values
    if AFTER not in columns:
        return {_last(evaluation): columns[BEFORE]}
    return {"image not edited, this run's text": columns[BEFORE], f"image {_last(evaluation)}": columns[AFTER]}


def beside(first: Evaluation, other: Evaluation) -> Curves:
    """What each of two runs makes of the captions that both have, each with its own texts."""
    pairs = zip((first, other), both(first, other), strict=True)
    return {f"{e.run}, {_last(e)}": e.rows.values.get(AFTER, e.rows.values[BEFORE])[at] for e, at in pairs}


def _last(evaluation: Evaluation) -> str:
    if AFTER not in evaluation.rows.values:
        return "not edited"
    return "rebuilt" if masks_nothing(evaluation) else "edited"


def histogram(curves: Curves, title: str) -> Figure:
    """How many captions have each cosine with their image."""
    edges = np.histogram_bin_edges(np.concatenate(list(curves.values())), BINS)
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for colour, (name, values) in zip(COLOURS, curves.items(), strict=False):
        axes.hist(values, bins=edges.tolist(), color=colour, alpha=0.6, label=f"{name}, mean {values.mean():.3f}")
    axes.set(xlabel="cosine of an image and its caption", ylabel="captions", title=title)
    figure.legend(loc="outside lower center")
    return figure
