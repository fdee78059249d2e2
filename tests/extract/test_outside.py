"""Features and ids in files of other programs: what is read, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vlpipe.extract.outside import map_features, read_id_file
from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError

ROWS = np.arange(30, dtype=np.float32).reshape(10, 3)


def test_lists_of_ids(tmp_path: Path) -> None:
    def written(name: str, data: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    assert read_id_file(written("a.txt", "é 1\n\n 2 \r\n3".encode())).to_pylist() == ["é 1", "", " 2 ", "3"]
    assert read_id_file(written("none.txt", b"\n")).to_pylist() == []
    assert read_id_file(written("b.txt", b"\xef\xbb\xbfa\n")).to_pylist() == ["a"]
    assert read_id_file(written("a.json", b'["007", 7, 12345678901234567890]')).to_pylist() == [
        "007", "7", "12345678901234567890",
    ]  # fmt: skip
    table = pa.table({"image_path": ["a", "b"], "key": [1, 2], "score": [0.5, 1.5]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read_id_file(tmp_path / "a.parquet", "image_path").to_pylist() == ["a", "b"]
    assert read_id_file(tmp_path / "a.parquet", "key").to_pylist() == ["1", "2"]
    with pytest.raises(UsageError, match="image_path, key, score; name one with --id-column"):
        read_id_file(tmp_path / "a.parquet")
    with pytest.raises(UnknownNameError, match="did you mean 'image_path'"):
        read_id_file(tmp_path / "a.parquet", "image_pat")
    with pytest.raises(VlpipeError, match="column 'score' is of double"):
        read_id_file(tmp_path / "a.parquet", "score")
    pq.write_table(pa.table({"x": ["c"], "text_id": ["d"]}), tmp_path / "b.parquet")
    assert read_id_file(tmp_path / "b.parquet").to_pylist() == ["d"]
    for name, data, told in (
        ("c.txt", b"\xff\xfe", "cannot be read: .*utf-8"),
        ("c.json", b"{", "cannot be read"),
        ("d.json", b'{"a": 1}', "expected a JSON list"),
        ("e.json", b"[1.5]", "expected a JSON list"),
        ("c.parquet", b"PAR1", "cannot be read"),
        ("c.csv", b"", r"expected one of \.txt, \.json, \.parquet"),
    ):
        with pytest.raises(VlpipeError, match=told):
            read_id_file(written(name, data))
    with pytest.raises(VlpipeError, match="do not exist"):
        read_id_file(tmp_path / "gone.txt")
    with pytest.raises(UsageError, match=r"no \.parquet table"):
        read_id_file(tmp_path / "a.txt", "x")


def test_only_plain_arrays_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.array([{}, []], object), allow_pickle=True)
    with pytest.raises(VlpipeError, match=r"no plain \.npy file of numbers"):
        map_features(path)
    np.savez(tmp_path / "x.npz", a=ROWS)
    path.write_bytes((tmp_path / "x.npz").read_bytes())
    with pytest.raises(VlpipeError, match=r"no plain \.npy"):
        map_features(path)
    np.save(path, ROWS)
    whole = path.read_bytes()
    for cut in (0, 5, 60, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(VlpipeError, match=r"no plain \.npy"):
            map_features(path)
    with pytest.raises(VlpipeError, match="do not exist"):
        map_features(tmp_path / "none.npy")
    np.save(path, ROWS.reshape(2, 5, 3))
    np.testing.assert_array_equal(map_features(path, -1), ROWS.reshape(2, 5, 3)[1])
    with pytest.raises(UsageError, match=r"--index 2: .* has the shape \(2, 5, 3\)"):
        map_features(path, 2)
