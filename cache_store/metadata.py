"""The `vlpipe` attribute that the group and each output array carry, guarded by its own checksum.

Zarr guards chunks, not metadata: without a checksum a flipped byte in a fingerprint or shape would go unseen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any, Literal

from vlpipe.cache_store.errors import CorruptCacheError, StaleCacheError
from vlpipe.cache_store.layout import FORMAT
from vlpipe.cache_store.places import Place, read_whole
from vlpipe.foundation.files import digest


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


def read_json(path: Place) -> Any:
    """A JSON file's value; None when it is not JSON. Raises FileNotFoundError, `CacheReadError`."""
    try:
        return json.loads(read_whole(path))
    except ValueError:  # covers broken JSON and broken UTF-8
        return None


def read_node(folder: Place, kind: Literal["group", "array"], fields: Set[str]) -> dict[str, Any]:
    """The `vlpipe` attribute of a node of one kind; an array's guarded metadata stands in it under "array".

    One that has other fields than these is not of this format. Raises `CorruptCacheError`, `CacheReadError`,
    `StaleCacheError` for a format that is newer than this program.
    """
    path = folder / "zarr.json"
    try:
        document = read_json(path)
        own = document["attributes"]["vlpipe"]
        _refuse_future(path, own)
        if (document["node_type"], document["zarr_format"]) != (kind, 3):
            raise KeyError("node_type")
        content = unsealed({**own, "array": guarded(document)} if kind == "array" else own)
    except (FileNotFoundError, AttributeError, KeyError, TypeError, ValueError):
        content = None
    if content is None or content.keys() != fields:
        raise CorruptCacheError(
            f"'{path}' is missing, damaged, or not vlpipe's; all rows under '{folder}' are in doubt: run the "
            "same `vlpipe extract` again, it writes the file anew where that is safe"
        )
    return content


def guarded(document: Mapping[str, Any]) -> dict[str, Any]:
    """What of an array's own metadata is sealed: all but the attributes, in which the seal lies."""
    return {key: value for key, value in document.items() if key != "attributes"}


def _refuse_future(path: Place, own: Mapping[str, Any]) -> None:
    """A newer format is told from a flipped digit, with which the seal fits the present one."""
    found = own.get("format")
    if isinstance(found, int) and found > FORMAT and unsealed({**own, "format": FORMAT}) is None:
        raise StaleCacheError(
            f"'{path}' has cache format {found}, this vlpipe reads format {FORMAT}; update vlpipe, or use another "
            "--cache"
        )
