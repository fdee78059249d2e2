"""Answers that cost time, kept by what was asked: a file of SQLite, whole after a kill, shared by processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from vlpipe.foundation.errors import VlpipeError

AT_ONCE = 500  # keys of one query
WAIT = 60.0  # seconds for another process to finish a write


class Memory:
    """Texts by key. Raises `VlpipeError` where the file is no such memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._open() as database:
            database.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL)")

    def get(self, keys: Sequence[str]) -> dict[str, str]:
        """The known ones of some keys."""
        found: dict[str, str] = {}
        with self._open() as database:
            for start in range(0, len(keys), AT_ONCE):
                part = list(keys[start : start + AT_ONCE])
                marks = ",".join("?" * len(part))
                found |= dict(database.execute(f"SELECT key, answer FROM answers WHERE key IN ({marks})", part))
        return found

    def put(self, answers: Mapping[str, str]) -> None:
        """Keep answers, all or none of them; a key that is known keeps its first answer."""
        with self._open() as database:
            database.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", answers.items())

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=WAIT)) as database, database:
                yield database
        except sqlite3.Error as error:
            raise VlpipeError(
                f"the answers in '{self.path}' cannot be used ({error}); delete the file, they are made again"
            ) from None
