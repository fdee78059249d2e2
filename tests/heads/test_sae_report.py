"""The strongest images of a latent against a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from vlpipe.heads.sae_report import strongest, strongest_images


def expected(code: np.ndarray, count: int) -> tuple[list[list[float]], list[list[int]]]:
    """By loops over a dense code."""
    values, rows = [], []
    for latent in range(code.shape[1]):
        order = [n for n in sorted(range(len(code)), key=lambda n: -code[n, latent]) if code[n, latent] > 0]
        gap = count - len(order[:count])
        values.append([float(code[n, latent]) for n in order[:count]] + [0.0] * gap)
        rows.append(order[:count] + [-1] * gap)
    return values, rows


def test_strongest_against_a_loop_with_ties_and_silent_latents() -> None:
    generator = torch.Generator().manual_seed(0)
    indices = torch.stack([torch.randperm(8, generator=generator)[:3] for _ in range(20)])
    values = torch.randint(0, 4, (20, 3), generator=generator).float()
    values[indices == 5] = 0
    code = torch.zeros(20, 8).scatter(1, indices, values).numpy()
    top, who = strongest(values, indices, 8, 6)
    assert (top.tolist(), who.tolist()) == expected(code, 6)
    assert who[5].tolist() == [-1] * 6


def test_strongest_images_go_by_manifest_positions_whatever_the_batch(world: Callable[..., Any]) -> None:
    made = world()
    run = made.trained("sae", latents=12, k=2, epochs=1).run
    plan = made.plan("sae", latents=12, k=2, epochs=1)
    head = run.head()
    rows = torch.from_numpy(made.arrays["enc:a", "image"]).float()
    values, indices = head.codes(rows)
    code = torch.zeros(len(rows), 12).scatter(1, indices, values).numpy()
    positions = plan.joined.images("train")
    _, local = expected(code[positions], 4)
    _, who = strongest_images(head, plan.joined, positions, 4, batch_size=7)
    assert who.tolist() == [[-1 if n < 0 else int(positions[n]) for n in row] for row in local]
