"""Pictures of the strongest images of each latent: which ones are drawn where, and under which name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from vlpipe.evaluate import latent_images


def test_rows_are_latents_and_pictures_the_strongest_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        Image.new("RGB", (4, 4), (40 * n, 0, 0)).save(tmp_path / f"{n}.png")
    top = torch.tensor([[3.0, 1.0], [2.0, 0.0]])
    who = torch.tensor([[2, 0], [1, -1]])
    paths = SimpleNamespace(to_pylist=lambda: [f"{n}.png" for n in range(3)])
    manifest = SimpleNamespace(image_root=tmp_path, table=lambda *_: {"path": paths})
    monkeypatch.setattr(latent_images, "open_joined", lambda _: None)
    monkeypatch.setattr(latent_images, "strongest_images", lambda *_: (top, who))
    monkeypatch.setattr(latent_images.Manifest, "open", lambda _: manifest)
    drawn: list[Figure] = []
    monkeypatch.setattr(latent_images, "save", lambda figure, path: drawn.append(figure) or path)
    run: Any = SimpleNamespace(manifest=tmp_path, head=lambda: SimpleNamespace(names=["red", "dark"]))
    out = tmp_path / "latents.png"
    assert latent_images.draw_latents(run, "test", [1, 0], out, count=2) == out
    cells = drawn[0].axes
    assert [cell.get_ylabel() for cell in cells] == ["dark", "", "red", ""]
    shown = [int(np.asarray(cell.images[0].get_array())[0, 0, 0]) if cell.images else None for cell in cells]
    assert shown == [40, None, 80, 0]
