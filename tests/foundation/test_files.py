from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from vlpipe.foundation.files import append_line, canonical_json, digest, file_digest, write_atomic


def test_a_file_is_whole_or_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sub" / "x.bin"
    write_atomic(path, b"one")
    assert path.read_bytes() == b"one"

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"two")
    assert path.read_bytes() == b"one"
    assert [p.name for p in path.parent.iterdir()] == ["x.bin"]


def test_lines_are_appended_one_a_record(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append_line(path, {"a": 1, "text": "line\u2028separator\n"})
    append_line(path, {"a": 2})
    assert [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] == [
        {"a": 1, "text": "line\u2028separator\n"},
        {"a": 2},
    ]
    with pytest.raises(ValueError, match="JSON"):
        append_line(path, {"a": float("nan")})


def test_a_digest_does_not_depend_on_the_order_of_keys(tmp_path: Path) -> None:
    assert canonical_json({"b": [1, 2.5], "a": "ü"}) == '{"a":"ü","b":[1,2.5]}'
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1}) != digest({"a": 1, "b": 2})
    (tmp_path / "f").write_bytes(b"abc")
    assert file_digest(tmp_path / "f") == hashlib.sha256(b"abc").hexdigest()
