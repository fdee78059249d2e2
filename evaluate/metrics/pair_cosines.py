"""How close an image lies to its captions, before and after it is edited by them (TEVI, Figs. 5, 6, B1, B2)."""

from __future__ import annotations

import numpy as np

from vlpipe.evaluate.contracts import Inputs, Rows
from vlpipe.foundation.errors import VlpipeError

STEP = 1024  # captions at once
BEFORE, AFTER = "original", "edited"


class PairCosines:
    """Mean cosine of an image and its caption: `cosine_original`, and `cosine_edited` where the head edits.

    Captions are as the head makes them both times: where a run learned its texts, `cosine_original` is not the
    frozen model's, which an `identity` run has. It says how images lie and not how well they are found: no
    retrieval follows from it.
    """

    def rows(self, inputs: Inputs) -> Rows:
        """One row a caption with an image: its cosines. Raises `VlpipeError` for one that is not finite."""
        captions = np.flatnonzero(inputs.text_image >= 0)
        images = inputs.text_image[captions]
        values = {name: np.zeros(len(captions)) for name in (BEFORE, AFTER)[: 1 if inputs.edits is None else 2]}
        for start in range(0, len(captions), STEP):
            part = slice(start, start + STEP)
            texts = inputs.vectors("text", captions[part])
            if inputs.edits is None:
                values[BEFORE][part] = (inputs.vectors("image", images[part]) * texts).sum(dim=1).numpy()
                continue
            values[BEFORE][part] = (inputs.edits.original(images[part]) * texts).sum(dim=1).numpy()
            values[AFTER][part] = inputs.pairs(images[part], captions[part]).numpy()
        if not all(np.isfinite(column).all() for column in values.values()):
            raise VlpipeError("a cosine is not finite; look at the head's training log")
        return Rows(np.array(inputs.text_ids, dtype=object)[captions], images, values)

    def summarise(self, rows: Rows) -> dict[str, float]:
        """The means."""
        return {f"cosine_{name}": float(values.mean()) for name, values in rows.values.items() if len(values)}

    def counts(self, rows: Rows) -> dict[str, int]:
        """Captions behind each mean."""
        return dict.fromkeys(self.summarise(rows), len(rows))
