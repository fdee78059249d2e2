"""Which stores of a cache are still asked for: those of living manifests, and those that runs were trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from vlpipe.cache_store.group import Group
from vlpipe.cache_store.layout import slug
from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.folder import Run
from vlpipe.heads.sources import parse_source
from vlpipe.manifests.manifest import read_description


def references(manifests: Iterable[Path], runs: Iterable[Path]) -> Callable[[Group, Path], bool]:
    """Says of a store whether it is of one of these manifests, or a run in these folders reads it.

    A run, finished or half, refers to its sources' stores of both sides. Raises `VlpipeError` for a folder that is
    no manifest, and for a damaged run: what that one reads is not known.
    """
    digests = {read_description(folder).digest for folder in manifests}
    trained_on = {
        (run.manifest_digest, slug(parse_source(source).output.partition("#")[0]))
        for folder in runs
        for run in Run.list(folder, _refuse)
        for source in run.sources.values()
    }

    def wanted(group: Group, store: Path) -> bool:
        name = store.stem.rpartition(".")[0]
        return group.manifest in digests or (group.manifest, name) in trained_on

    return wanted


def _refuse(error: VlpipeError) -> None:
    raise VlpipeError(f"{error}; until then it is not known which features that run reads, nothing was deleted")
