"""Pictures whose top caption one run has right and another wrong, drawn at random (TEVI, Fig. B3)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vlpipe.evaluate.answers import Evaluation
from vlpipe.evaluate.figures import LOOK, both, path_of, save
from vlpipe.evaluate.latent_images import bare
from vlpipe.evaluate.shown import Shown, texts_of

LINE, LINES = 52, 5  # characters of a line of a caption, and lines of it
MARKS = {True: ("\u2713", "#00734d"), False: ("\u2717", "#b8420a")}
Example = tuple[
    str, list[tuple[str, bool]]
]  # image id; by run: the id of its top caption, and whether it is right


def draw(evaluations: Sequence[Evaluation], folder: Path, count: int, seed: int) -> list[Path]:
    """The first run against each other one, a PNG file each; nothing where none differs, or for one run alone."""
    drawn = []
    first = evaluations[0]
    texts = texts_of(first.manifest) if len(evaluations) > 1 else {}
    for other in evaluations[1:]:
        chosen = [pick(first, other, wanted, count, seed) for wanted in (False, True)]
        if any(chosen):
            with mpl.rc_context({**LOOK, "axes.grid": False}):
                figure = pictures(first, other, chosen, texts)
                drawn.append(save(figure, path_of(folder, [first, other])))
    return drawn


def pick(first: Evaluation, other: Evaluation, first_right: bool, count: int, seed: int) -> list[Example]:
    """At most `count` images that the first run has right and the other wrong, or the reverse, in a drawn order.

    The draw depends on the seed and these images alone.
    """
    places = both(first, other)
    ids = first.rows.query_ids[places[0]]
    tops, rights = (
        [e.rows.values[name][at] for e, at in zip((first, other), places, strict=True)]
        for name in ("top", "right")
    )
    here, there = (right.astype(np.bool_) == first_right for right in rights)
    differ = np.flatnonzero(here & ~there)
    order = np.random.default_rng(seed).permutation(len(differ))[:count]
    return [
        (ids[n], [(top[n], bool(right[n])) for top, right in zip(tops, rights, strict=True)])
        for n in differ[order]
    ]


def pictures(
    first: Evaluation, other: Evaluation, chosen: Sequence[Sequence[Example]], texts: dict[str, str]
) -> Figure:
    """A column where the other run is right, a column where the first is: picture, and both runs' top captions."""
    shown = Shown.of(first.manifest)
    rows = max(map(len, chosen))
    figure = Figure(figsize=(13, 1.75 * rows + 0.5))
    axes = figure.subplots(rows, 4, squeeze=False, width_ratios=[1, 2.6, 1, 2.6])
    for column, (title, examples) in enumerate(zip((other.run, first.run), chosen, strict=True)):
        for cell in axes[:, 2 * column : 2 * column + 2].flat:
            bare(cell)
        axes[0, 2 * column + 1].set_title(f"only {title} is right", loc="left", fontsize=11)
        for row, (image, answers) in enumerate(examples):
            axes[row, 2 * column].imshow(shown.picture(image))
            runs = [(first.run, *answers[0]), (other.run, *answers[1])]
            _captions(axes[row, 2 * column + 1], runs, texts)
    return figure


def _captions(cell: Axes, runs: Sequence[tuple[str, str, bool]], texts: dict[str, str]) -> None:
    """Each run's name and top caption, one under the other."""
    for place, (run, top, right) in enumerate(runs):
        mark, colour = MARKS[right]
        text = textwrap.fill(texts.get(top, top), LINE, max_lines=LINES, placeholder=" ...")
        height = 0.98 - 0.5 * place
        look: Any = {"transform": cell.transAxes, "va": "top"}
        cell.text(0.0, height, f"{mark} {run}", color=colour, fontsize=8, **look)
        cell.text(0.0, height - 0.11, text, fontsize=8, parse_math=False, **look)
