"""Block markers: the small JSON files whose presence commits a block.

A marker names the block's rows, the set of ids they belong to, how many have which status, and for each committed
output the seal of its array and the crc32c of every chunk. It comes last, by an atomic rename, after all that it
names is on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vlpipe.cache_store.durable import write_durable
from vlpipe.cache_store.errors import CorruptCacheError
from vlpipe.cache_store.layout import marker_path
from vlpipe.cache_store.metadata import read_json, sealed, unsealed
from vlpipe.cache_store.places import Place
from vlpipe.foundation.files import canonical_json, fsync_folder


@dataclass(frozen=True)
class Files:
    """One array in one block: the crc32c of its chunks, in order, and the seal of the metadata they belong to.

    The seal also tells that a damaged `zarr.json` may be written anew: it is that of what is asked for.
    """

    seal: str
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

    def encoded(self) -> bytes:
        """The file's bytes."""
        return canonical_json(sealed(asdict(self))).encode()

    def write(self, store: Path) -> None:
        """Commit the block, durably."""
        path = marker_path(store, self.block)
        write_durable(path, [self.encoded()])
        fsync_folder(path.parent)

    @classmethod
    def read(cls, store: Place, block: int, rows: range, ids: str) -> Marker | None:
        """A block's marker, None when it is not committed.

        Raises `CorruptCacheError` for a marker that is altered, has other fields, or is not of these rows and ids.
        """
        path = marker_path(store, block)
        try:
            content = unsealed(read_json(path))
        except FileNotFoundError:
            return None
        expected = {"block": block, "start": rows.start, "stop": rows.stop, "ids": ids}
        found = None if content is None or content | expected != content else cls.of(content)
        if found is None:
            raise CorruptCacheError(
                f"'{path}' is damaged or of other rows; rows {rows.start} to {rows.stop - 1} are in doubt: run "
                "the same `vlpipe extract` again, it encodes only these rows"
            )
        return found

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Marker | None:
        """The marker of an unsealed document, None where it has other fields."""
        try:
            files = {name: Files(**entry) for name, entry in content["files"].items()}
            return cls(**{**content, "files": files})
        except (TypeError, KeyError, AttributeError):
            return None
