"""The images that activate a latent the most, a row of pictures a latent (TEVI, Figs. 4, A1 and A2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vlpipe.evaluate.answers import Evaluation
from vlpipe.evaluate.figures import LOOK, path_of, save
from vlpipe.evaluate.shown import Shown

INCH = 0.7  # a picture


def draw(evaluations: Sequence[Evaluation], folder: Path) -> list[Path]:
    """One PNG file a run; returns their paths."""
    with mpl.rc_context({**LOOK, "axes.grid": False}):
        return [save(pictures(e), path_of(folder, [e])) for e in evaluations]


def pictures(evaluation: Evaluation) -> Figure:
    """A row a latent, strongest image first, its activation above it; rows in the order of the evaluation."""
    values = evaluation.rows.values
    shown = Shown.of(evaluation.manifest)
    latents = list(dict.fromkeys(values["latent"].tolist()))
    count = int(values["place"].max()) + 1
    names = dict(zip(values["latent"].tolist(), values["name"].tolist(), strict=True))
    wide = 0.1 * max(len(title(n, names[n])) for n in latents) + 0.2  # inches that the names take
    figure = Figure(figsize=(INCH * count + wide, (INCH + 0.12) * len(latents)))
    axes = figure.subplots(len(latents), count, squeeze=False)
    for row, latent in zip(axes, latents, strict=True):
        row[0].set_ylabel(title(latent, names[latent]), rotation=0, ha="right", va="center", fontsize=9)
        for cell in row:
            bare(cell)
        for n in np.flatnonzero(values["latent"] == latent):
            if values["picture"][n] is not None:
                cell = row[values["place"][n]]
                cell.imshow(shown.picture(values["picture"][n]))
                cell.set_title(f"{values['activation'][n]:.2g}", fontsize=6, pad=1)
    return figure


def title(latent: int, name: str) -> str:
    """What a latent is called, `NAME (LATENT)`, or its number alone."""
    return name if name == str(latent) else f"{name} ({latent})"


def bare(cell: Axes) -> None:
    """No ticks and no frame."""
    cell.set(xticks=[], yticks=[])
    for spine in cell.spines.values():
        spine.set_visible(False)
