"""A writer killed at any moment: what is committed is right, and going on ends in the same store to the bit."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlpipe.cache_store.group import Group
from vlpipe.cache_store.reader import open_features


@pytest.fixture(scope="module")
def reference(sample: Any, contents: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("reference") / "tiny.image.zarr"
    sample.fill(sample.open_writer(path))
    found: dict[str, bytes] = contents(path)
    return found


def killed(sample: Any, store: Path, sync: int, seconds: float | None) -> None:
    """Run a writer that dies at a sync, or is killed after some seconds."""
    command = [sys.executable, str(sample.SCRIPT), str(store), str(sync), "0.01"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        if seconds is not None:
            time.sleep(seconds)
            process.kill()
        process.wait(60)


def check(sample: Any, store: Path) -> None:
    """Committed rows are right, the rest is not usable, and only missing blocks are written."""
    committed: list[int] = []
    if (store / "zarr.json").exists():
        group = Group.open(store)
        committed = [block for block in group.blocks if group.marker(store, block)]
        rows = np.array([row for block in committed for row in group.span(block)], np.int64)
        for name in sample.OUTPUTS:
            if (store / name).exists():
                features = open_features(store, name)
                assert np.flatnonzero(features.usable).tolist() == rows.tolist()
                wanted = sample.values(name).astype(features.dtype)[rows]
                np.testing.assert_array_equal(features.take(rows), wanted)
    written = sample.fill(sample.open_writer(store))
    assert sorted({*committed, *written}) == [0, 1, 2, 3, 4]
    assert not {*committed} & {*written}


def campaign(cases: int, seed: int) -> list[Any]:
    """Half of the cases die at a chosen sync (a whole run has 80), half after a random time."""
    draw = random.Random(seed)
    at_sync = [(draw.randint(1, 80), None) for _ in range(cases // 2)]
    return [*at_sync, *((0, draw.uniform(0, 0.8)) for _ in range(cases - cases // 2))]


def run_case(sample: Any, store: Path, contents: Any, reference: dict[str, bytes], case: Any) -> None:
    killed(sample, store, *case)
    check(sample, store)
    assert contents(store) == reference


@pytest.mark.parametrize("case", campaign(6, seed=0))
def test_a_killed_writer(
    sample: Any, store: Path, contents: Any, reference: dict[str, bytes], case: tuple[int, float | None]
) -> None:
    run_case(sample, store, contents, reference, case)


@pytest.mark.soak
@pytest.mark.parametrize("case", campaign(200, seed=1))
def test_a_killed_writer_at_many_moments(
    sample: Any, store: Path, contents: Any, reference: dict[str, bytes], case: tuple[int, float | None]
) -> None:
    run_case(sample, store, contents, reference, case)
