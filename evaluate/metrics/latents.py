"""Which images activate a latent the most, and what it is called (TEVI, Eq. 5, Figs. 4, A1 and A2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from vlpipe.evaluate.choices import named
from vlpipe.evaluate.codes import Codes
from vlpipe.evaluate.contracts import Inputs, IntArray, NothingToScoreError, Rows
from vlpipe.foundation.errors import UnknownNameError, VlpipeError

MOST = 26  # latents, when none are asked for: as many as MAD has attribute values


class Latents:
    """Numbers: `active_share:LATENT`, the images that activate it.

    Without a choice the first 26 latents that any image activates. Where there are prompts, a head that edits
    calls a latent by the nearest of them; else it is called as the autoencoder calls it, by concept or number.
    """

    resampled: ClassVar[bool] = False

    def __init__(self, latents: Sequence[int] = (), count: int = 10) -> None:
        self.latents = tuple(latents)
        self.count = count

    def rows(self, inputs: Inputs) -> Rows:
        """One row an image of a latent, strongest first: `latent`, `name`, `place`, `activation`, `picture` (its
        id), `share`; a latent that no image activates has one row, without an image.

        Raises `NothingToScoreError` for a head without latents, `UnknownNameError` for a latent that is not there.
        """
        codes = inputs.codes
        if codes is None:
            raise NothingToScoreError(
                "this head has no latents; expected a sae or cg_sae run, or a tevi run on one"
            )
        top, who = codes.strongest(self.count)
        times = codes.times()
        names = self._names(inputs, codes)
        found = []
        for latent in self._chosen(times):
            filled = [place for place in range(self.count) if who[latent, place] >= 0] or [0]
            found += [(latent, place) for place in filled]
        latents, places = np.array(found, dtype=np.int64).T
        images: IntArray = who[latents, places]
        return Rows(
            named([f"{latent}#{place}" for latent, place in found]),
            images,
            {
                "latent": latents,
                "name": named([names[latent] for latent in latents]),
                "place": places,
                "activation": top.numpy()[latents, places],
                "picture": named([inputs.image_ids[image] if image >= 0 else None for image in images]),
                "share": times[latents] / max(1, len(inputs.image_ids)),
            },
        )

    def _chosen(self, times: IntArray) -> list[int]:
        unknown = [latent for latent in self.latents if not 0 <= latent < len(times)]
        if unknown:
            raise UnknownNameError("latent", str(unknown[0]), [f"0 to {len(times) - 1}"])
        chosen = list(dict.fromkeys(self.latents)) or np.flatnonzero(times)[:MOST].tolist()
        if not chosen:
            raise VlpipeError("no image of this split activates a latent; look at the autoencoder's training log")
        return chosen

    @staticmethod
    def _names(inputs: Inputs, codes: Codes) -> Sequence[str]:
        prompts = np.flatnonzero([role == "prompt" for role in inputs.columns["role"]])
        nearest = inputs.edits.nearest(prompts) if len(prompts) and inputs.edits is not None else None
        if nearest is None:
            return codes.names
        return [inputs.columns["text"][prompts[place]] for place in nearest]

    def summarise(self, rows: Rows) -> dict[str, float]:
        """All numbers that the rows define."""
        latents, first = np.unique(rows.values["latent"], return_index=True)
        shares = rows.values["share"][first]
        return {f"active_share:{n}": float(share) for n, share in zip(latents, shares, strict=True)}

    def counts(self, rows: Rows) -> dict[str, int]:
        """Images behind each number, of those that are drawn."""
        latents, times = np.unique(rows.values["latent"][rows.image >= 0], return_counts=True)
        drawn = dict(zip(latents.tolist(), times.tolist(), strict=True))
        return {name: drawn.get(int(name.partition(":")[2]), 0) for name in self.summarise(rows)}
