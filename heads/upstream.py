"""Finished runs as steps on the way of rows to another head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vlpipe.cache_store.fingerprint import differences
from vlpipe.cache_store.layout import Side
from vlpipe.foundation.errors import StaleError, UsageError
from vlpipe.heads.contracts import Batch, roles_on


class Upstream:
    """What a finished head makes of one side's rows: its `images` or `texts`, without gradients.

    The rows come under every image role of that head, or under its first text role; what it gives back under
    the first role of the side is passed on.
    """

    def __init__(self, run_id: str, head: Any) -> None:
        self.run_id = run_id
        self.head = head

    def __call__(self, rows: Tensor, side: Side) -> Tensor:
        """(rows, *shape) to (rows, *other shape)."""
        names = roles_on(self.head.roles, side)
        ids = [""] * len(rows)
        with torch.no_grad():
            if side == "image":
                done = self.head.images(Batch(ids, dict.fromkeys(names, rows)))
            else:
                done = self.head.texts(Batch(ids, {names[0]: rows}))
        found: Tensor = done.x[names[0]]
        return found


def check_upstream(
    run_id: str, roles: Sequence[str], provenance: dict[str, Any], rows: dict[str, Any], side: Side
) -> None:
    """Raise `UsageError` when the run has no role of this side, `StaleError` when it was trained on other rows.

    `roles` are the run's roles of this side, `provenance` what its rows came from by role, `rows` what the
    rows that it is about to get came from, before it.
    """
    if not roles:
        raise UsageError(f"run '{run_id}' reads no {side}s; take it out of the {side} source")
    trained = provenance[roles[0]]
    found = differences(_flat(trained), _flat(rows))
    if found:
        raise StaleError(
            f"run '{run_id}' was trained on other {side} rows than it would get: "
            f"{'; '.join(found)} (cached: what it was trained on)"
        )


def _flat(provenance: dict[str, Any]) -> dict[str, str]:
    """One level of texts; the dtype at rest is left out, since either precision serves."""
    fields = {name: str(value) for name, value in provenance["fingerprint"].items()}
    return fields | {"output": provenance["output"], "through": "::".join(provenance["through"])}
