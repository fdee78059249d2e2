"""Pictures inside tar shards are encoded like files, in threads, and their faults are one row's."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from toys.mini import counts, job, manifest

from vlpipe.cache_store.reader import open_features
from vlpipe.extract.pictures import PictureError, read_bytes
from vlpipe.extract.run import extract
from vlpipe.manifests.build import build

NAMES = [f"{n:03d}.png" for n in range(40)]


def shards(photos: Path, root: Path) -> Path:
    """The pictures in two shards, in reverse order, with a caption each."""
    root.mkdir()
    for shard in range(2):
        with tarfile.open(root / f"{shard:05d}.tar", "w") as tar:
            for name in NAMES[shard::2][::-1]:
                caption = root / f"{name[:3]}.txt"
                caption.write_text(f"caption {name}")
                tar.add(photos / name, name)
                tar.add(caption, caption.name)
                caption.unlink()
    return root


def test_rows_equal_those_of_the_files(photos: Path, tmp_path: Path) -> None:
    packed = build("webdataset", shards(photos, tmp_path / "set"), tmp_path / "m")
    work = job(packed, tmp_path / "cache", workers=4)
    assert counts(extract(work))[0] == len(NAMES)
    loose = job(manifest(tmp_path / "m2", photos, NAMES, []), tmp_path / "other")
    extract(loose)
    ids = [f"0000{int(name[:3]) % 2}/{name[:3]}" for name in NAMES]
    found = open_features(work.store, "pooled").rows(ids)
    np.testing.assert_array_equal(
        found, open_features(loose.store, "pooled").rows([f"i:{name}" for name in NAMES])
    )
    assert counts(extract(work))[:2] == (0, len(NAMES))  # known content is checked in the shards too


def test_a_cut_shard_fails_its_rows_only(photos: Path, tmp_path: Path) -> None:
    root = shards(photos, tmp_path / "set")
    packed = build("webdataset", root, tmp_path / "m")
    shard = root / "00001.tar"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    summary = extract(job(packed, tmp_path / "cache"))
    failed = [json.loads(line) for line in Path(str(summary.failures)).read_text().splitlines()]
    assert 0 < len(failed) < len(NAMES) // 2
    assert all(line["id"].startswith("00001/") for line in failed)
    assert all("build the manifest again" in line["reason"] for line in failed)
    with pytest.raises(PictureError, match="the file does not exist"):
        read_bytes(root / "00002.tar#512+10")
