"""Pictures that were replaced under the same path since their rows were cached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vlpipe.extract.pictures import PictureError, content_hash, read_bytes
from vlpipe.extract.prefetch import Failure, prefetch

AHEAD = 16  # files read or waiting per worker


def replaced_rows(root: Path, paths: Iterable[str], cached: NDArray[np.uint8], workers: int) -> Iterator[int]:
    """Positions of the rows whose file has other bytes than those that were encoded.

    `cached` (rows, 16) holds content hashes, zeros for rows to leave out. A file that is gone proves nothing: its
    row stays as it is.
    """
    known: NDArray[np.bool_] = np.any(cached, axis=1)
    wanted = ((row, path) for row, path in enumerate(paths) if known[row])

    def changed(entry: tuple[int, str]) -> int | None:
        row, path = entry
        try:
            data = read_bytes(root / path)
        except PictureError:
            return None
        return row if content_hash(data) != cached[row].tobytes() else None

    for found in prefetch(changed, wanted, workers, AHEAD * workers):
        if found is not None and not isinstance(found, Failure):
            yield found
