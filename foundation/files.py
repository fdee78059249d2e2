"""Files that are whole or absent, and digests of data."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def fsync_folder(folder: Path) -> None:
    """Make renames inside a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file that a reader sees whole or not at all, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    fsync_folder(path.parent)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add one JSON line to an append-only file; a single write, so parallel writers do not mix lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(line.encode("utf-8"))


def canonical_json(data: Any) -> str:
    """The one spelling of a JSON value that digests are taken of: sorted keys, no blanks, no NaN."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(data: Any) -> str:
    """SHA-256 of a JSON value, 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(data).encode("utf-8")).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, read in pieces, 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
