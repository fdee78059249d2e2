"""The `vlpipe` attribute that the group and each output array carry, guarded by its own checksum.

Zarr guards chunks, not metadata: without a checksum a flipped byte in a fingerprint or shape would go unseen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlpipe.cache_store.errors import CorruptCacheError, StaleCacheError
from vlpipe.cache_store.layout import FORMAT
from vlpipe.foundation.files import digest

GUARDED = ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs")


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with its checksum beside it."""
    return {**content, "checksum": digest(content)}


def unsealed(document: Any) -> dict[str, Any] | None:
    """The content without its checksum, or None when they do not belong together."""
    if not isinstance(document, dict):
        return None
    content = {key: value for key, value in document.items() if key != "checksum"}
    try:
        return content if document.get("checksum") == digest(content) else None
    except ValueError:  # what cannot be digested (NaN, broken Unicode) was never sealed
        return None


def read_json(path: Path) -> Any:
    """A JSON file's value; None when it is not JSON. Raises FileNotFoundError."""
    try:
        return json.loads(path.read_bytes())
    except ValueError:  # covers broken JSON and broken UTF-8
        return None


def read_node(folder: Path) -> dict[str, Any]:
    """A node's `vlpipe` attribute; an array's guarded metadata stands in it under "array".

    Raises `CorruptCacheError`, and `StaleCacheError` for a format that is newer than this program.
    """
    path = folder / "zarr.json"
    try:
        document = read_json(path)
        own = document["attributes"]["vlpipe"]
        _refuse_future(path, own.get("format"))
        if document["node_type"] == "array":
            own = {**own, "array": guarded(document)}
        content = unsealed(own)
    except (FileNotFoundError, NotADirectoryError, AttributeError, KeyError, TypeError, ValueError):
        content = None
    if content is None:
        raise CorruptCacheError(
            f"'{path}' is missing, damaged, or not vlpipe's; all rows under '{folder}' are in doubt: restore "
            "it from a copy, or delete that folder and run `vlpipe extract` again"
        )
    return content


def guarded(document: Mapping[str, Any]) -> dict[str, Any]:
    """What of an array's own metadata decides which bytes a row is."""
    return {key: document[key] for key in GUARDED}


def _refuse_future(path: Path, found: Any) -> None:
    if isinstance(found, int) and found > FORMAT:
        raise StaleCacheError(
            f"'{path}' has cache format {found}, this vlpipe reads format {FORMAT}; update vlpipe, or use another "
            "--cache"
        )
