"""Finished runs, and the rows that they read."""

from __future__ import annotations

from pathlib import Path

from vlpipe.foundation.errors import StaleError, VlpipeError
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
    """The rows that a run reads, on its own manifest (wherever it lies now) or on another one.

    On its own the run's split rule holds unless another is given, on another one the split column. Raises
    `StaleError` when its own manifest, the pictures and texts that were encoded of it, or how they were encoded is
    no longer what it was trained on, `NotCachedError` with the command that makes missing features, `VlpipeError`
    when the folders that it was trained from are gone and no others are named, or a run that it stands on.
    """
    opener = Opener(
        manifest or _still_there(run, "manifest", run.manifest),
        cache or _still_there(run, "cache", run.cache),
        run.folder.parent,
    )
    own = opener.manifest.digest == run.manifest_digest
    if manifest is None and not own:
        raise StaleError(
            f"manifest '{run.manifest}' has other rows ({opener.manifest.digest[:12]}) than run '{run.id}' was "
            f"trained on ({run.manifest_digest[:12]}); train again, or name a manifest to evaluate on"
        )
    sources = {role: parse_source(source) for role, source in run.sources.items()}
    for passed in (run_id for source in sources.values() for run_id in source.through):
        if not (run.folder.parent / passed).is_dir():
            raise VlpipeError(
                f"run '{run.id}' stands on run '{passed}', which is not in '{run.folder.parent}': bring it there, "
                "or train both again"
            )
    joined = opener.joined(run.roles, sources, rule or (run.split_rule if own else COLUMN))
    for role, rows in joined.sources.items():
        check_rows(run, role, rows, content=own)
    return joined


def _still_there(run: Run, what: str, folder: Path) -> Path:
    if not folder.is_dir():
        raise VlpipeError(
            f"run '{run.id}' was trained on {what} '{folder}', which is gone; say where it is now: --{what} DIR"
        )
    return folder
