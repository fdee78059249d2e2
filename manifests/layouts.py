"""A publisher's files: what is expected where, and errors that say so when something else is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.readers import Record, read_json_lines, unique_keys

T = TypeVar("T")
WORDS: Mapping[type, str] = {str: "text", int: "a whole number", list: "a list", dict: "an object"}
SHOWN = 60  # characters of a value that is not what was expected


@dataclass(frozen=True)
class Layout:
    """One set's layout; every error says what was `expected` and where it is published."""

    name: str
    expected: str
    source: str = ""  # of a form of one's own there is no publisher

    def refuse(self, found: str) -> VlpipeError:
        """The error for what was found instead."""
        where = f"; published at {self.source}" if self.source else ""
        return VlpipeError(f"{found}; expected {self.expected}{where}")

    def root(self, root: Path | None) -> Path:
        """The publisher's folder. Raises `VlpipeError` where none is given, or it is not there."""
        if root is None or not root.is_dir():
            raise self.refuse(
                f"{self.name} " + ("needs --root DIR" if root is None else f"has no folder '{root}'")
            )
        return root

    def find(self, root: Path, *names: str) -> Path | None:
        """The first of these files or folders under `root` that is there."""
        return next((root / name for name in names if (root / name).exists()), None)

    def need(self, root: Path, *names: str) -> Path:
        """The same. Raises `VlpipeError` where none is."""
        found = self.find(root, *names)
        if found is None:
            raise self.refuse(f"'{root}' is not {self.name}: it has no {' or '.join(names)}")
        return found

    def json(self, path: Path, hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
        """A whole JSON file; `hook` sees every object.

        Raises `VlpipeError`: not there, not UTF-8, not JSON, a key twice in one object (one of its rows is lost).
        """

        def checked(pairs: list[tuple[str, Any]]) -> Any:
            record = unique_keys(pairs)
            return hook(record) if hook else record

        try:
            return json.loads(self._bytes(path).decode("utf-8-sig"), object_pairs_hook=checked)
        except (ValueError, RecursionError) as error:
            raise self.refuse(f"'{path}' is not JSON: {error}") from None

    def json_lines(self, path: Path) -> Iterator[Record]:
        """JSON lines whatever the file's ending, numbers as their digits. Raises as `json` does."""
        if not path.is_file():
            raise self.refuse(f"'{path}' does not exist")
        return read_json_lines(path)

    def lines(self, path: Path) -> list[str]:
        """A text file's lines to the letter, empty ones too, without their ends. Raises as `json` does."""
        try:
            lines = self._bytes(path).decode("utf-8-sig").split("\n")
        except UnicodeDecodeError as error:
            raise VlpipeError(f"'{path}' is not UTF-8 ({error}); unpack the archive again") from None
        return [line.removesuffix("\r") for line in lines[: -1 if lines[-1] == "" else None]]

    def entries(self, path: Path) -> list[str]:
        """A list's lines without blanks around them; empty ones are left out. Raises as `json` does."""
        return [line.strip() for line in self.lines(path) if line.strip()]

    def _bytes(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise self.refuse(f"'{path}' does not exist") from None
        except OSError as error:
            raise self.refuse(f"'{path}' cannot be read: {error.strerror}") from None

    def part(self, record: Any, key: str, kind: type[T] | tuple[type[T], ...], where: str) -> T:
        """A value of a JSON object. Raises `VlpipeError` that names place and keys where it has no such value."""
        found = record.get(key) if isinstance(record, dict) else None
        if isinstance(found, kind) and not isinstance(found, bool):
            return found
        keys = f"its keys are {', '.join(record)}" if isinstance(record, dict) else f"it is {record!r}"[:SHOWN]
        was = f"{key} is {found!r}"[:SHOWN] if isinstance(record, dict) and key in record else f"has no {key}"
        wanted = "a number" if isinstance(kind, tuple) else WORDS[kind]
        raise self.refuse(f"{where} {was}, {wanted} was looked for; {keys}")
