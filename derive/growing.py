"""A manifest with rows added: the old ones as they are and in their order, then the new."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.manifest import ROWS, Manifest
from vlpipe.manifests.schema import TABLES, Kind
from vlpipe.manifests.writer import write_manifest


def rows(manifest: Manifest, kind: Kind) -> Iterator[Row]:
    """A table's rows as the writer takes them, in flat memory."""
    for batch in manifest.batches(kind, TABLES[kind].schema.names, TABLES[kind].step):
        for row in batch.to_pylist():
            yield row | {"attributes": dict(row["attributes"] or ())}


def grow(
    manifest: Manifest,
    out: Path,
    added: Iterable[Row],
    *,
    name: str | None,
    suffix: str,
    settings: Mapping[str, Any],
    overwrite: bool,
) -> Manifest:
    """Write the manifest with these texts more into another folder; `settings` say how they were made.

    Raises `UsageError` where the folder is the manifest's own, `VlpipeError` where there is nothing to add or a
    first row is there already, and what `write_manifest` raises.
    """
    if out.resolve() == manifest.folder.resolve():
        raise UsageError(f"--out '{out}' is the manifest that is read; give another folder")
    return write_manifest(
        out,
        name=name or f"{manifest.name}-{suffix}",
        source=manifest.description.source,
        licence=manifest.description.licence,
        image_root=manifest.image_root,
        images=rows(manifest, "image"),
        texts=chain(rows(manifest, "text"), _some(added, manifest, suffix)),
        regions=rows(manifest, "region"),
        settings={"from": manifest.digest, **settings},
        overwrite=overwrite,
    )


def _holds(manifest: Manifest, text_id: str) -> bool:
    batches = manifest.batches("text", ["text_id"], ROWS)
    return any(pc.any(pc.equal(batch["text_id"], text_id)).as_py() for batch in batches)


def _some(added: Iterable[Row], manifest: Manifest, what: str) -> Iterator[Row]:
    empty = True
    for row in added:
        if empty and _holds(manifest, row["text_id"]):  # told before the work, not by the writer at its end
            raise VlpipeError(
                f"manifest '{manifest.folder}' has {what} of this kind already (text_id {row['text_id']!r}); make "
                "them of the manifest without, with all settings at once"
            )
        empty = False
        yield row
    if empty:
        raise VlpipeError(
            f"manifest '{manifest.folder}' gives no {what}: they are made of texts of role caption, and nothing "
            "that is asked can be made of its captions"
        )
