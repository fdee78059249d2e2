"""Finished runs, and the rows that they read."""

from __future__ import annotations

from pathlib import Path

from vlpipe.cache_store.fingerprint import differences
from vlpipe.foundation.errors import StaleError
from vlpipe.heads.data import Joined
from vlpipe.heads.folder import Run
from vlpipe.heads.opening import Opener
from vlpipe.heads.sources import parse_source
from vlpipe.heads.splits import COLUMN

__all__ = ["Run", "open_joined"]


def open_joined(
    run: Run, manifest: Path | None = None, cache: Path | None = None, rule: str | None = None
) -> Joined:
    """The rows that a run reads, on its own manifest or on another one.

    Raises `StaleError` when its own manifest, or the fingerprint of the features, is no longer what it was
    trained on, `NotCachedError` with the command that makes missing features.
    """
    opener = Opener(manifest or run.manifest, cache or run.cache, run.folder.parent)
    if manifest is None and opener.manifest.digest != run.manifest_digest:
        raise StaleError(
            f"manifest '{run.manifest}' has other rows ({opener.manifest.digest[:12]}) than run '{run.id}' was "
            f"trained on ({run.manifest_digest[:12]}); train again, or name a manifest to evaluate on"
        )
    sources = {role: parse_source(source) for role, source in run.sources.items()}
    joined = opener.joined(run.roles, sources, rule or (run.split_rule if manifest is None else COLUMN))
    for role, fingerprint in run.fingerprints.items():
        found = differences(joined.sources[role].provenance["fingerprint"], fingerprint)
        if found:
            path = joined.sources[role].features.path
            raise StaleError(
                f"run '{run.id}' was trained on other '{role}' features than '{path}' holds: "
                f"{'; '.join(found)}; train again on these"
            )
    return joined
