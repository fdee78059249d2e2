"""The images that activate a latent the most, a row of pictures a latent (TEVI, Figs. 4, A1 and A2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from vlpipe.evaluate.figures import LOOK, save
from vlpipe.heads.folder import Run
from vlpipe.heads.runs import open_joined
from vlpipe.heads.sae_report import strongest_images
from vlpipe.manifests.manifest import Manifest

INCH = 0.7  # a picture


def draw_latents(
    run: Run, split: str | None, latents: Sequence[int], path: Path, *, count: int = 10, names: Sequence[str] = ()
) -> Path:
    """Some latents of a finished autoencoder run with `count` images each, strongest first, as a PNG file.

    Latents are called as the run calls them, or by `names` (one for each latent of the run).
    """
    head, joined = run.head(), open_joined(run)
    top, who = strongest_images(head, joined, split, count)
    manifest = Manifest.open(run.manifest)
    paths = manifest.table("image", ["path"])["path"].to_pylist()
    titles = list(names or head.names)
    with mpl.rc_context({**LOOK, "axes.grid": False}):
        figure = Figure(figsize=(INCH * (count + 2), INCH * len(latents)))
        axes = figure.subplots(len(latents), count, squeeze=False)
        for row, latent in zip(axes, latents, strict=True):
            row[0].set_ylabel(titles[latent], rotation=0, ha="right", va="center")
            for cell, position, value in zip(row, who[latent].tolist(), top[latent].tolist(), strict=True):
                cell.set(xticks=[], yticks=[])
                for spine in cell.spines.values():
                    spine.set_visible(False)
                if position >= 0:
                    with Image.open(manifest.image_root / paths[position]) as picture:
                        cell.imshow(np.asarray(picture.convert("RGB")))
                    cell.set_title(f"{value:.1f}", fontsize=6, pad=1)
        return save(figure, path)
