"""Pictures that were replaced under the same path since their rows were cached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vlpipe.extract.pictures import PictureError, content_hash, read_bytes
from vlpipe.extract.prefetch import Failure, prefetch

AHEAD = 16  # files read or waiting per worker


def replaced_rows(
    root: Path, paths: Iterable[str], cached: NDArray[np.uint8], workers: int, unread: list[int] | None = None
) -> Iterator[int]:
    """Positions of the rows whose file has other bytes than those that were encoded.

    `cached` (rows, 16) holds content hashes, zeros for rows to leave out. A file that is gone proves nothing: its
    row stays as it is, and is added to `unread`, where that is given.
    """
    known: NDArray[np.bool_] = np.any(cached, axis=1)
    wanted = ((row, path) for row, path in enumerate(paths) if known[row])

    def compared(entry: tuple[int, str]) -> tuple[int, bool | None]:
        row, path = entry
        try:
            return row, content_hash(read_bytes(root / path)) == cached[row].tobytes()
        except PictureError:
            return row, None

    for found in prefetch(compared, wanted, workers, AHEAD * workers):
        if isinstance(found, Failure):
            continue
        row, same = found
        if same is False:
            yield row
        elif same is None and unread is not None:
            unread.append(row)
