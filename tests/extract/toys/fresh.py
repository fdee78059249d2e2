"""A store against one made in a new cache, and manifests of which every row has its own file."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
from toys.mini import manifest

from vlpipe.cache_store.reader import open_features
from vlpipe.extract.job import Job
from vlpipe.extract.run import Summary, extract
from vlpipe.manifests.manifest import Manifest


def work_done(summary: Summary) -> tuple[int, int, int]:
    return summary.encoded, summary.copied, summary.already


def check_fresh(work: Job, fresh: Path) -> None:
    """Every row and status is that of a new cache; the toy encoder's rows do not depend on batch mates."""
    new = dataclasses.replace(work, cache=fresh)
    extract(new)
    check_equal(work, new)


def check_equal(work: Job, other: Job) -> None:
    """Two stores hold the same, to the bit."""
    for output in work.outputs:
        here, there = (open_features(w.store, output) for w in (work, other))
        assert list(here.ids) == list(there.ids)
        np.testing.assert_array_equal(here.status, there.status)
        rows = np.flatnonzero(here.usable)
        assert here.take(rows).tobytes() == there.take(rows).tobytes()
        assert here.content_digest == there.content_digest


def manifest_of(folder: Path, photos: Path, numbers: list[int]) -> Manifest:
    """One row a number, each a file of its own below `folder`, with that photo's content."""
    root = folder / "root"
    root.mkdir(parents=True)
    for row, number in enumerate(numbers):
        shutil.copy(photos / f"{number:03d}.png", root / f"{row}.png")
    return manifest(folder / "m", root, [f"{row}.png" for row in range(len(numbers))], [])
