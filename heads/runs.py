"""Finished runs, and the rows that they read."""

from __future__ import annotations

from pathlib import Path

from vlpipe.foundation.errors import StaleError
from vlpipe.heads.data import Joined
from vlpipe.heads.folder import Run
from vlpipe.heads.opening import Opener
from vlpipe.heads.sources import parse_source
from vlpipe.heads.splits import COLUMN
from vlpipe.heads.upstream import check_rows

__all__ = ["Run", "open_joined"]


def open_joined(
    run: Run, manifest: Path | None = None, cache: Path | None = None, rule: str | None = None
) -> Joined:
    """The rows that a run reads, on its own manifest or on another one.

    Raises `StaleError` when its own manifest, the pictures and texts that were encoded of it, or how they were
    encoded is no longer what it was trained on, `NotCachedError` with the command that makes missing features.
    """
    opener = Opener(
        manifest or run.manifest, cache or run.cache, run.folder.parent, elsewhere=manifest is not None
    )
    if manifest is None and opener.manifest.digest != run.manifest_digest:
        raise StaleError(
            f"manifest '{run.manifest}' has other rows ({opener.manifest.digest[:12]}) than run '{run.id}' was "
            f"trained on ({run.manifest_digest[:12]}); train again, or name a manifest to evaluate on"
        )
    sources = {role: parse_source(source) for role, source in run.sources.items()}
    joined = opener.joined(run.roles, sources, rule or (run.split_rule if manifest is None else COLUMN))
    for role, rows in joined.sources.items():
        check_rows(run, role, rows, content=manifest is None)
    return joined
