"""CIFAR-10 and -100 from miniatures of the binary version: pixels, labels, order, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.manifest import Manifest

NAMES10 = ("airplane", "automobile", "bird")
FINE, COARSE = ("apple", "aquarium_fish", "baby"), ("aquatic_mammals", "fish", "fruit_and_vegetables", "people")
ABOVE = {0: 2, 1: 1, 2: 3}  # coarse number by fine number
ROWS = 2  # of each file
Pixels = npt.NDArray[np.uint8]


def pixels(seed: int) -> Pixels:
    """(32, 32, 3), with the three channels and both axes telling each other apart."""
    return np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)


def record(labels: list[int], picture: Pixels) -> bytes:
    """Written pixel by pixel: 1,024 red bytes row by row, then green, then blue."""
    planes = [int(picture[y, x, c]) for c in range(3) for y in range(32) for x in range(32)]
    return bytes(labels) + bytes(planes)


def publish10(root: Path, home: str = "cifar-10-batches-bin") -> Path:
    (root / home).mkdir(parents=True)
    for file, name in enumerate([*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]):
        rows = [record([(file + n) % 3], pixels(10 * file + n)) for n in range(ROWS)]
        (root / home / name).write_bytes(b"".join(rows))
    (root / home / "batches.meta.txt").write_text("\n".join(NAMES10) + "\n\n")
    (root / home / "readme.html").write_text("<html>")
    return root


def publish100(root: Path) -> Path:
    home = root / "cifar-100-binary"
    home.mkdir(parents=True)
    for name, seed in (("train", 0), ("test", 7)):
        rows = [record([ABOVE[n], n], pixels(seed + n)) for n in range(3)]
        (home / f"{name}.bin").write_bytes(b"".join(rows))
    (home / "fine_label_names.txt").write_text("\n".join(FINE) + "\n")
    (home / "coarse_label_names.txt").write_text("\n".join(COARSE) + "\n")
    return root


def picture(manifest: Manifest, path: str) -> Pixels:
    return np.asarray(Image.open(manifest.image_root / path))


def test_cifar10(tmp_path: Path) -> None:
    notes: list[str] = []
    manifest = build("cifar10", publish10(tmp_path / "set"), tmp_path / "m", note=notes.append)
    manifest.verify()
    rows = manifest.table("image").to_pylist()
    assert [row["image_id"] for row in rows] == [f"train/{n:05d}" for n in range(10)] + [
        "test/00000",
        "test/00001",
    ]
    assert [row["label"] for row in rows] == [NAMES10[(f + n) % 3] for f in range(6) for n in range(ROWS)]
    assert manifest.description.splits["images"] == {"train": 10, "test": 2}
    for number, row in enumerate(rows):
        assert np.array_equal(picture(manifest, row["path"]), pixels(10 * (number // ROWS) + number % ROWS))
    assert manifest.image_root == tmp_path / "m"
    assert manifest.count("text") == 3 * 8
    assert notes[0] == "cifar10: 10 images in split train, published are 50,000"
    inside = build("cifar10", tmp_path / "set" / "cifar-10-batches-bin", tmp_path / "m2")
    assert inside.digest == manifest.digest


def test_cifar100_has_coarse_labels(tmp_path: Path) -> None:
    root = publish100(tmp_path / "set")
    manifest = build("cifar100", root, tmp_path / "m", {"templates": ["a {}"]})
    rows = manifest.table("image").to_pylist()
    assert [row["label"] for row in rows] == [*FINE, *FINE]
    assert [dict(row["attributes"]) for row in rows[:3]] == [
        {"class": "apple", "superclass": "fruit_and_vegetables"},
        {"class": "aquarium fish", "superclass": "fish"},
        {"class": "baby", "superclass": "people"},
    ]
    assert np.array_equal(picture(manifest, rows[4]["path"]), pixels(8))
    assert manifest.table("text")["text"].to_pylist() == ["a apple", "a aquarium fish", "a baby"]
    (tmp_path / "above.json").write_text(json.dumps(dict.fromkeys(FINE, "thing")))
    manifest = build("cifar100", root, tmp_path / "m2", {"superclasses": str(tmp_path / "above.json")})
    assert {dict(row)["superclass"] for row in manifest.table("image")["attributes"].to_pylist()} == {"thing"}


def test_the_python_version_is_a_pickle_and_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "set" / "cifar-10-batches-py").mkdir(parents=True)
    with pytest.raises(
        VlpipeError, match=r"is not CIFAR-10: .*not the Python one, which is a pickle.*published at"
    ):
        build("cifar10", tmp_path / "set", tmp_path / "m")


def test_wrong_files(tmp_path: Path) -> None:
    expected = r"expected cifar-10-batches-bin/ of the binary version .*published at https://www\.cs\.toronto\.edu"
    with pytest.raises(VlpipeError, match=f"CIFAR-10 needs --root DIR; {expected}"):
        build("cifar10", None, tmp_path / "m")
    home = publish10(tmp_path / "set") / "cifar-10-batches-bin"
    good = (home / "data_batch_3.bin").read_bytes()
    for bad in (good[:-1], b""):
        (home / "data_batch_3.bin").write_bytes(bad)
        with pytest.raises(VlpipeError, match=r"data_batch_3\.bin' has [\d,]+ bytes; expected a multiple of 3073"):
            build("cifar10", tmp_path / "set", tmp_path / "m")
    (home / "data_batch_3.bin").unlink()
    with pytest.raises(VlpipeError, match=f"data_batch_3.bin' does not exist; {expected}"):
        build("cifar10", tmp_path / "set", tmp_path / "m")
    (home / "data_batch_3.bin").write_bytes(bytes([3]) + good[1:])
    with pytest.raises(VlpipeError, match="has a picture of class 3, but 3 names"):
        build("cifar10", tmp_path / "set", tmp_path / "m")
