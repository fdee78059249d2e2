"""Figures of attributes: what latents tell, and what images still show (TEVI, Figs. 3, 5, A3 and A4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from vlpipe.evaluate.answers import Evaluation
from vlpipe.evaluate.figures import COLOURS, LOOK, masks_nothing, path_of, save
from vlpipe.evaluate.metrics.specificity import Specificity

SHADES = {"its own value": COLOURS[0], "the same attribute": COLOURS[1], "other attributes": "#999999"}
SPLIT = {"edited": "edited", "value": "value mask", "category": "category mask"}
ENDS = {"in": "in caption", "out": "not in caption"}
KINDS = {
    "original": "original",
    "rebuilt": "rebuilt",
    **{f"{kind}_{end}": f"{SPLIT[kind]}, {ENDS[end]}" for kind in SPLIT for end in ENDS},
    "ablated": "ablated",
}
SHADE = {kind: COLOURS[n] for n, kind in enumerate(("original", "rebuilt", *SPLIT, "ablated"))}


def draw_areas(evaluations: Sequence[Evaluation], folder: Path) -> list[Path]:
    """A PNG file an attribute and run; returns their paths."""
    drawn = []
    for evaluation in evaluations:
        names, areas = Specificity().areas(evaluation.rows)
        for attribute in dict.fromkeys(name.partition(":")[0] for name in names):
            with mpl.rc_context(LOOK):
                drawn.append(save(latents(names, areas, attribute), path_of(folder, [evaluation], attribute)))
    return drawn


def latents(names: Sequence[str], areas: np.ndarray, attribute: str) -> Figure:
    """A panel for the latent of each value of an attribute: bars are its AUC for every value, 0.5 tells nothing.

    A value that all images have, or none, has no bar.
    """
    own = [n for n, name in enumerate(names) if name.partition(":")[0] == attribute]
    columns = 1 if len(own) < 4 else 2
    rows = -(-len(own) // columns)
    figure = Figure(figsize=(6.5 * columns, 1.5 * rows + 1.5))
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    shade = list(SHADES.values())
    for cell, latent in zip(axes.flat, own, strict=False):
        kinds = [0 if n == latent else 1 if n in own else 2 for n in range(len(names))]
        cell.bar(range(len(names)), areas[latent], color=[shade[kind] for kind in kinds])
        cell.axhline(0.5, color="#333333", linestyle=":", linewidth=1)
        cell.set(ylim=(0, 1.02), title=f"latent of {names[latent].partition(':')[2]}")
        cell.set_xticks(range(len(names)), [name.partition(":")[2] for name in names], rotation=90, fontsize=8)
        cell.set_xlim(-0.7, len(names) - 0.3)
        cell.grid(axis="x", visible=False)
    for place in range(len(own), rows * columns):
        axes.flat[place].set_visible(False)
        axes.flat[place - columns].tick_params(labelbottom=True)  # nothing is under it
    for cell in axes[:, 0]:
        cell.set_ylabel("AUC")
    handles = [Patch(color=colour, label=label) for label, colour in SHADES.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def draw_accuracies(evaluations: Sequence[Evaluation], folder: Path) -> list[Path]:
    """A PNG file a run; returns their paths."""
    with mpl.rc_context(LOOK):
        return [save(accuracies(e), path_of(folder, [e])) for e in evaluations]


def accuracies(evaluation: Evaluation) -> Figure:
    """Accuracy by attribute, a bar a kind of image embedding, with intervals; dotted: chance.

    A run whose mask is 'none' edits nothing and has no edited bars.
    """
    entries = evaluation.entries
    attributes = [name.partition(":")[2] for name in entries if name.startswith("chance_accuracy:")]
    still = masks_nothing(evaluation)
    kinds = [k for k in KINDS if f"accuracy_{k}" in entries and not (still and k.startswith("edited"))]
    width = 0.8 / len(kinds)
    figure = Figure(figsize=(max(7, 1.9 * len(attributes)), 4.6))
    axes = figure.subplots()
    for place, kind in enumerate(kinds):
        there = [n for n, name in enumerate(attributes) if f"accuracy_{kind}:{name}" in entries]
        found = [entries[f"accuracy_{kind}:{attributes[n]}"] for n in there]
        values = np.array([100 * entry.value for entry in found])
        ends = np.array([[100 * end for end in entry.interval or [entry.value] * 2] for entry in found])
        at = np.array(there) + (place - (len(kinds) - 1) / 2) * width
        look: Any = {"color": SHADE[kind.partition("_")[0]], "hatch": "//" if kind.endswith("_out") else ""}
        axes.bar(at, values, 0.94 * width, label=KINDS[kind], edgecolor="white", linewidth=0, **look)
        axes.errorbar(at, values, np.abs(ends.T - values), fmt="none", ecolor="#333333", elinewidth=1)
    for n, name in enumerate(attributes):
        chance = 100 * entries[f"chance_accuracy:{name}"].value
        axes.hlines(chance, n - 0.45, n + 0.45, color="#333333", linestyle=":", label="chance" if n == 0 else "_")
    axes.set_xticks(range(len(attributes)), attributes)
    axes.set(ylim=(0, 104), ylabel="zero-shot accuracy (%)", title=_title(evaluation))
    axes.grid(axis="x", visible=False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _title(evaluation: Evaluation) -> str:
    ablated = next(iter(evaluation.entries.values())).provenance.options.get("ablate")
    return evaluation.run + (f", ablated: the latents of {ablated}" if ablated else "")
