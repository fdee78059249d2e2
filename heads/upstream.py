"""Finished runs as steps on the way of rows to another head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vlpipe.cache_store.fingerprint import differences
from vlpipe.cache_store.layout import Side
from vlpipe.foundation.errors import StaleError
from vlpipe.heads.contracts import Batch, roles_on
from vlpipe.heads.folder import Run
from vlpipe.heads.sources import CachedRows


class Upstream:
    """What a finished head makes of one side's rows: its `images` or `texts`.

    The rows come under every image role of that head, or under its first text role; what it gives back under
    the first role of the side is passed on. Its `identity` names the weights, too: one run trained again on
    another machine may have others. `head` is the finished head itself, for heads that stand on the run.
    """

    def __init__(self, run: Run) -> None:
        self.head = run.head()
        self.identity = f"{run.id}@{run.status['weights']}"

    def __call__(self, rows: Tensor, side: Side) -> Tensor:
        """(rows, *shape) to (rows, *other shape), without gradients."""
        with torch.no_grad():
            return self.transformed(rows, side)

    def transformed(self, rows: Tensor, side: Side) -> Tensor:
        """The same with gradients, where the head lets them pass."""
        names = roles_on(self.head.roles, side)
        ids = [""] * len(rows)
        if side == "image":
            done = self.head.images(Batch(ids, dict.fromkeys(names, rows)))
        else:
            done = self.head.texts(Batch(ids, {names[0]: rows}))
        found: Tensor = done.x[names[0]]
        return found


def check_rows(run: Run, role: str, rows: CachedRows, *, content: bool) -> None:
    """Raise `StaleError` when a run's role was trained on other rows than these.

    The encoder, the output and the runs in between must be the same; either precision at rest serves. With
    `content` the pictures and texts themselves must be, too.
    """
    trained, now = run.provenance[role], rows.provenance
    path, side = rows.features.path, rows.features.side
    found = differences(_flat(now), _flat(trained))
    if found:
        raise StaleError(
            f"run '{run.id}' was trained on other '{role}' features than '{path}' holds: {'; '.join(found)}; "
            "train again on these"
        )
    if content and now["content"] != trained.get("content"):
        what = "pictures" if side == "image" else "texts"
        raise StaleError(
            f"{what} of '{path}' were encoded anew (or more of them) since run '{run.id}' was trained: they have "
            f"the digest {now['content'][:12]}, it saw {str(trained.get('content'))[:12]}; `vlpipe train-head` "
            "makes a new run of them"
        )


def _flat(provenance: dict[str, Any]) -> dict[str, str]:
    """What decides a row's value besides the item itself, in one level of texts."""
    fields = {name: str(value) for name, value in provenance["fingerprint"].items()}
    return fields | {"output": provenance["output"], "through": "::".join(provenance["through"])}
