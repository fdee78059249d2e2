"""The rows that could not be encoded, with the reason: a file next to the store, one JSON line a row."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from vlpipe.cache_store.errors import writing
from vlpipe.foundation.files import fsync_folder, write_atomic

Record = Mapping[str, str]


class FailureFile:
    """`<store>.failures.jsonl`: id, path (or text) and reason of every failed row; after a run, none twice."""

    def __init__(self, store: Path) -> None:
        self.path = store.with_suffix(".failures.jsonl")

    def read(self) -> list[Record]:
        """What is listed, in order; of two records of one id the later counts. A damaged line counts as none."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")[:-1]  # the last was cut short
        return [record for record in map(_record, lines) if record is not None]

    def commonest(self) -> tuple[str, int] | None:
        """The reason that most of the listed rows have, and how many; of equally many the one listed first."""
        counted = Counter(record["reason"] for record in self.read() if isinstance(record.get("reason"), str))
        return counted.most_common(1)[0] if counted else None

    def add(self, records: Collection[Record]) -> None:
        """List some rows, durably; costs what they do, however many are listed already."""
        if not records:
            return
        with writing(self.path), self._locked(), self.path.open("ab+") as file:
            file.seek(max(file.tell() - 1, 0))
            if file.read() not in (b"", b"\n"):  # a kill has cut the last line short
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
            file.write(_lines(records))
            file.flush()
            os.fsync(file.fileno())
        fsync_folder(self.path.parent)

    def keep(self, failed: Callable[[Collection[str]], Collection[str]]) -> None:
        """Drop the rows that have not failed any more: `failed` gives those of the listed ids that still have."""
        if not self.path.exists():
            return
        with self._locked():
            records = self.read()
            latest = {record["id"]: record for record in records}
            kept = failed(latest)
            if not kept:
                self.path.unlink()
            elif (lines := _lines(latest[name] for name in latest if name in kept)) != self.path.read_bytes():
                write_atomic(self.path, lines)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, by a lock on the folder that dies with the process."""
        handle = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _record(line: bytes) -> Record | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("id"), str) else None


def _lines(records: Iterable[Record]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode("utf-8")
