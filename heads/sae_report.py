"""Which images a latent answers to the most."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vlpipe.heads.data import Joined
from vlpipe.heads.loop import batches
from vlpipe.heads.tables import IntArray


def strongest(values: Tensor, indices: Tensor, latents: int, count: int) -> tuple[Tensor, Tensor]:
    """Each latent's highest values among some codes (n, K), and their rows: (latents, count) each, falling.

    Where fewer rows activate a latent the value is 0 and the row -1. Of equal values the earlier row comes first.
    """
    active = values > 0
    rows = torch.arange(len(values), device=values.device)[:, None].expand_as(indices)[active]
    found, latent = values[active], indices[active]
    order = found.argsort(descending=True, stable=True)
    order = order[latent[order].argsort(stable=True)]
    latent = latent[order]
    counts = torch.bincount(latent, minlength=latents)
    place = torch.arange(len(latent), device=values.device) - (counts.cumsum(0) - counts)[latent]
    first = place < count
    top = values.new_zeros(latents, count)
    who = torch.full((latents, count), -1, dtype=torch.int64, device=values.device)
    top[latent[first], place[first]] = found[order][first]
    who[latent[first], place[first]] = rows[order][first]
    return top, who


def strongest_images(
    head: Any, joined: Joined, images: IntArray, count: int, batch_size: int = 1024
) -> tuple[Tensor, Tensor]:
    """Values and manifest positions (latents, count) of those of some images that activate each latent the most.

    One pass over the images, in memory that does not grow with them; -1 as in `strongest`.
    """
    latents = head.autoencoder.latents
    top = torch.zeros(latents, count)
    who = torch.full((latents, count), -1, dtype=torch.int64)
    for positions in batches(images, batch_size):
        values, indices = head.codes(joined.image_batch(positions).x["image"])
        value, row = strongest(values, indices, latents, count)
        place = torch.where(row >= 0, torch.from_numpy(positions)[row], -1)
        both, places = torch.cat([top, value.to(top.dtype)], dim=1), torch.cat([who, place], dim=1)
        order = both.argsort(dim=1, descending=True, stable=True)[:, :count]
        top, who = both.gather(1, order), places.gather(1, order)
    return top, who
