"""Block markers: the small JSON files whose presence commits a block.

A marker names the block's rows, the set of ids they belong to, how many have which status, and the size and crc32c
of every chunk file of each committed output. It comes last, by an atomic rename, after all that it names is on
disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from vlpipe.cache_store.durable import write_durable
from vlpipe.cache_store.errors import CorruptCacheError
from vlpipe.cache_store.layout import marker_path
from vlpipe.cache_store.metadata import read_json, sealed, unsealed
from vlpipe.foundation.files import canonical_json, fsync_folder


@dataclass(frozen=True)
class Files:
    """The chunk files of one array in one block: bytes of each, and their crc32c in order."""

    bytes: int
    crc32c: list[int]


@dataclass(frozen=True)
class Marker:
    """What a committed block holds: `ids` is the digest of the store's ids, `status` counts rows by status."""

    block: int
    start: int
    stop: int
    ids: str
    status: Mapping[str, int]
    files: Mapping[str, Files]

    def write(self, store: Path) -> None:
        """Commit the block, durably."""
        path = marker_path(store, self.block)
        write_durable(path, [canonical_json(sealed(asdict(self))).encode()])
        fsync_folder(path.parent)

    @classmethod
    def read(cls, store: Path, block: int, rows: range, ids: str) -> Marker | None:
        """A block's marker, None when it is not committed.

        Raises `CorruptCacheError` for a marker that is altered, or is not of these rows and ids.
        """
        path = marker_path(store, block)
        try:
            content = unsealed(read_json(path))
        except FileNotFoundError:
            return None
        expected = {"block": block, "start": rows.start, "stop": rows.stop, "ids": ids}
        if content is None or content | expected != content:
            raise CorruptCacheError(
                f"'{path}' is damaged or of other rows; rows {rows.start} to {rows.stop - 1} are in doubt: run "
                "the same `vlpipe extract` again, it encodes only these rows"
            )
        files = {name: Files(**entry) for name, entry in content.pop("files").items()}
        return cls(**content, files=files)
