"""Opening a manifest's features for heads: each store and each table once, however many runs read them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from vlpipe.cache_store.layout import Side
from vlpipe.cache_store.reader import FeatureSet
from vlpipe.foundation.errors import UsageError
from vlpipe.heads.contracts import Role, Source, roles_on
from vlpipe.heads.data import Joined
from vlpipe.heads.folder import Run
from vlpipe.heads.sources import CachedRows, open_output
from vlpipe.heads.splits import COLUMN
from vlpipe.heads.tables import Tables
from vlpipe.heads.upstream import Upstream, check_rows
from vlpipe.manifests.manifest import Manifest


class Opener:
    """A manifest, its cache and the runs that rows may pass through; what is opened stays open and is shared.

    A run that was trained on this manifest must have seen the same pictures and texts.
    """

    def __init__(self, manifest: Path, cache: Path, runs: Path) -> None:
        self.manifest = Manifest.open(manifest)
        self.cache = cache
        self.runs = runs
        self._features: dict[tuple[str, Side], FeatureSet] = {}
        self._rows: dict[tuple[Source, Side, bool], CachedRows] = {}
        self._joined: dict[tuple[Any, ...], Joined] = {}

    @cached_property
    def tables(self) -> Tables:
        """The manifest's tables, joined."""
        return Tables.read(self.manifest)

    def joined(self, roles: Mapping[str, Role], sources: Mapping[str, Source], rule: str = COLUMN) -> Joined:
        """What a head with these roles learns from: the same for the same roles, sources and rule."""
        key = *roles.items(), *sources.items(), rule
        if key not in self._joined:
            rows = {name: self.rows(sources[name], role.side, stands=role.stands) for name, role in roles.items()}
            self._joined[key] = Joined(self.tables, roles, rows, rule)
        return self._joined[key]

    def rows(self, source: Source, side: Side, *, stands: bool = False) -> CachedRows:
        """One source's rows, before its last run when a head `stands` on that.

        Raises what `open_output` and `check_rows` raise, `UsageError`.
        """
        key = source, side, stands
        if stands and not source.through:
            raise UsageError(
                f"{side}s from '{source.output}': this head stands on a finished run of them; name it: "
                f"--source {side}={source.output}::RUN"
            )
        if key not in self._rows:
            features = self._open(source.output, side)
            rows = CachedRows(features, [])
            for left, run_id in zip(reversed(range(len(source.through))), source.through, strict=True):
                upstream = self._upstream(run_id, rows, side)
                under = stands and not left
                through = rows.through if under else [*rows.through, upstream]
                rows = CachedRows(features, through, upstream if under else None)
            self._rows[key] = rows
        return self._rows[key]

    def _open(self, output: str, side: Side) -> FeatureSet:
        if (output, side) not in self._features:
            ids = self.tables.image_ids if side == "image" else self.tables.text_ids
            self._features[output, side] = open_output(self.cache, self.manifest, output, side, ids)
        return self._features[output, side]

    def _upstream(self, run_id: str, rows: CachedRows, side: Side) -> Upstream:
        run = Run.open(self.runs, run_id)
        names = roles_on(run.roles, side)
        if not names:
            raise UsageError(f"run '{run_id}' reads no {side}s; take it out of the {side} source")
        check_rows(run, names[0], rows, content=run.manifest_digest == self.manifest.digest)
        return Upstream(run)
