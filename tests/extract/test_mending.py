"""Rows that are done again where outputs of the store are at different stages, or of different dtypes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys.mini import counts, job, manifest

from vlpipe.cache_store.reader import open_features
from vlpipe.extract.job import Job
from vlpipe.extract.run import InterruptedRunError, extract

PATHS = [f"{n:03d}.png" for n in range(150)]  # three blocks of 64
BOTH = ("pooled", "tokens")
Make = Callable[..., Job]


@pytest.fixture
def root(photos: Path, tmp_path: Path) -> Path:
    return shutil.copytree(photos, tmp_path / "root")


@pytest.fixture
def make(root: Path, tmp_path: Path) -> Make:
    """A job over the pictures, in the one cache unless another is named."""
    found = manifest(tmp_path / "m", root, PATHS, [])
    return lambda *outputs, cache="cache", **options: job(found, tmp_path / cache, outputs=outputs, **options)


def half_tokens(make: Make, **options: Any) -> None:
    """All of `pooled`, and the first block of `tokens`."""
    extract(make("pooled", **options))
    with pytest.raises(InterruptedRunError):
        extract(make("tokens", settings={"interrupt_after": 4}, **options))


def usable(work: Job, output: str) -> list[int]:
    return np.flatnonzero(open_features(work.store, output).usable).tolist()


def check_equal(make: Make, **dtypes: str) -> None:
    """Every usable row is that of a new cache."""
    fresh = make(*BOTH, cache="fresh", dtype="float32")
    extract(fresh)
    for output in BOTH:
        cached, new = (open_features(work.store, output) for work in (make(), fresh))
        assert cached.dtype == dtypes.get(output, "float16")
        rows = np.flatnonzero(cached.usable)
        np.testing.assert_array_equal(cached.take(rows), new.take(rows).astype(cached.dtype))


def test_mending_a_row_does_not_go_on_with_an_unfinished_output(make: Make, root: Path) -> None:
    half_tokens(make)
    shutil.copy(root / "160.png", root / "003.png")  # both outputs are there
    shutil.copy(root / "161.png", root / "100.png")  # only the one
    assert counts(extract(make("pooled"))) == (2, 148, 150, 0, 0)
    assert usable(make(), "tokens") == list(range(64))
    assert counts(extract(make("pooled"))) == (0, 150, 150, 0, 0)
    check_equal(make)
    assert counts(extract(make("tokens"))) == (86, 64, 150, 0, 0)
    check_equal(make)


def test_a_new_output_mends_the_old_one_where_a_picture_was_replaced(make: Make, root: Path) -> None:
    half_tokens(make)
    shutil.copy(root / "161.png", root / "100.png")
    assert counts(extract(make("tokens"))) == (86, 64, 150, 0, 0)
    assert usable(make(), "pooled") == list(range(150))
    check_equal(make)


def test_a_failed_row_is_mended_for_the_outputs_of_its_block_only(make: Make, root: Path) -> None:
    for name in ("003.png", "100.png"):
        (root / name).rename(root / f"was-{name}")
    half_tokens(make)
    for name in ("003.png", "100.png"):
        (root / f"was-{name}").rename(root / name)
    assert counts(extract(make("pooled", retry_failed=True))) == (2, 148, 150, 0, 0)
    assert usable(make(), "tokens") == list(range(64))
    check_equal(make)


def test_a_failed_row_is_mended_while_an_output_is_added(make: Make, root: Path) -> None:
    (root / "100.png").rename(root / "was-100.png")
    extract(make("pooled"))
    (root / "was-100.png").rename(root / "100.png")
    summary = extract(make("tokens", retry_failed=True))
    assert counts(summary) == (150, 0, 150, 0, 0)
    assert summary.failures is None
    assert usable(make(), "pooled") == list(range(150))
    check_equal(make)


@pytest.mark.parametrize("asked", [("pooled", "float16"), ("tokens", "float32")])
def test_outputs_of_two_dtypes_keep_theirs(make: Make, root: Path, asked: tuple[str, str]) -> None:
    (root / "100.png").rename(root / "was-100.png")
    extract(make("pooled"))
    extract(make("tokens", dtype="float32"))
    (root / "was-100.png").rename(root / "100.png")
    shutil.copy(root / "160.png", root / "003.png")
    again = make(asked[0], dtype=asked[1], retry_failed=True)
    assert counts(extract(again)) == (2, 148, 150, 0, 0)
    check_equal(make, tokens="float32")


def test_a_lost_file_of_another_output_is_made_anew_with_the_mended_row(make: Make, root: Path) -> None:
    extract(make(*BOTH))
    (make().store / "tokens" / "c.1.0.0").unlink()
    shutil.copy(root / "161.png", root / "100.png")
    assert counts(extract(make("pooled"))) == (64, 86, 150, 0, 0)
    assert usable(make(), "tokens") == list(range(150))
    check_equal(make)
