"""The rows that could not be encoded, with the reason: a file next to the store, one JSON line a row."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from vlpipe.foundation.files import write_atomic

Record = Mapping[str, str]


class FailureFile:
    """`<store>.failures.jsonl`: id, path (or text) and reason of every failed row, none listed twice."""

    def __init__(self, store: Path) -> None:
        self.path = store.with_suffix(".failures.jsonl")

    def read(self) -> dict[str, Record]:
        """Records by id; empty when nothing has failed."""
        if not self.path.exists():
            return {}
        lines = self.path.read_text(encoding="utf-8").split("\n")[:-1]  # texts may hold other line ends
        return {record["id"]: record for record in map(json.loads, lines)}

    def add(self, records: Collection[Record]) -> None:
        """List some rows, over what was said of them before."""
        if records:
            with self._locked():
                self._write(self.read() | {record["id"]: record for record in records})

    def keep(self, failed: Callable[[Collection[str]], Collection[str]]) -> None:
        """Drop the rows that have not failed any more: `failed` gives those of the listed ids that still have."""
        if not self.path.exists():
            return
        with self._locked():
            found = self.read()
            kept = failed(found)
            if len(kept) < len(found):
                self._write({name: record for name, record in found.items() if name in kept})

    def _write(self, records: Mapping[str, Record]) -> None:
        if not records:
            self.path.unlink(missing_ok=True)
            return
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records.values()]
        write_atomic(self.path, "".join(lines).encode("utf-8"))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, by a lock on the folder that dies with the process."""
        handle = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
