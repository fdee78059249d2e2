"""A picture that was replaced under its name is found, and only its row is encoded again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from toys.mini import counts, job, manifest

from vlpipe.cache_store.reader import open_features
from vlpipe.extract.run import extract

PATHS = [f"{n:03d}.png" for n in range(70)]


def test_a_replaced_picture_is_encoded_again_for_every_output(photos: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(photos, root)
    found = manifest(tmp_path / "m", root, PATHS, [])
    work = job(found, tmp_path / "cache", outputs=("pooled", "tokens"))
    extract(work)
    before = open_features(work.store, "pooled").rows([f"i:{p}" for p in PATHS])
    shutil.copy(root / "150.png", root / "003.png")
    shutil.copy(root / "151.png", root / "069.png")
    again = job(found, tmp_path / "cache")  # asks for one output of the two
    assert counts(extract(again)) == (2, 68, 70, 0, 0)
    assert counts(extract(again)) == (0, 70, 70, 0, 0)
    fresh = job(found, tmp_path / "fresh", outputs=("pooled", "tokens"))
    extract(fresh)
    for output in ("pooled", "tokens"):
        rows = [open_features(w.store, output).rows([f"i:{p}" for p in PATHS]) for w in (work, fresh)]
        np.testing.assert_array_equal(*rows)
    after = open_features(work.store, "pooled").rows([f"i:{p}" for p in PATHS])
    assert np.flatnonzero((before != after).any(axis=1)).tolist() == [3, 69]


def test_a_picture_that_is_gone_or_trusted_keeps_its_row(photos: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(photos, root)
    found = manifest(tmp_path / "m", root, PATHS, [])
    extract(job(found, tmp_path / "cache"))
    (root / "004.png").unlink()
    shutil.copy(root / "150.png", root / "003.png")
    assert counts(extract(job(found, tmp_path / "cache", check_content=False))) == (0, 70, 70, 0, 0)
    assert counts(extract(job(found, tmp_path / "cache"))) == (1, 69, 70, 0, 0)


def test_a_picture_replaced_by_a_broken_one_becomes_a_failure(photos: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(photos, root)
    found = manifest(tmp_path / "m", root, PATHS, [])
    extract(job(found, tmp_path / "cache"))
    (root / "003.png").write_bytes(b"not a picture")
    summary = extract(job(found, tmp_path / "cache"))
    assert counts(summary) == (1, 69, 69, 0, 1)
    assert [json.loads(line)["id"] for line in Path(str(summary.failures)).read_text().splitlines()] == [
        "i:003.png"
    ]
