"""The order of an epoch's rows: decided by seed, epoch, usable rows, chunk size and window, and by nothing else.

The chunks that hold usable rows are put in a seeded order and cut into windows of whole chunks, of about equally
many rows; the rows of a window are shuffled uniformly. Reading by chunks then needs one window's rows at a time,
and a set that fits one window gets a plain uniform permutation. Each window is drawn by itself, from a stream of
its own, so that any place of an epoch is found without drawing what stands before it.

Only raw bits of PCG64 are used, which NumPy promises not to change: an epoch's order outlasts NumPy's versions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]

WINDOW_BYTES = 1 << 30
WINDOW_ROWS = 1 << 20  # of narrow rows: their numbers alone take 24 MiB while they are drawn


def default_window(row_bytes: int) -> int:
    """Rows of a window: 1 GiB of them, at most 1,048,576; never dependent on a machine's memory."""
    return max(1, min(WINDOW_ROWS, WINDOW_BYTES // row_bytes))


class EpochOrder:
    """The positions of usable rows in the order of one epoch, window by window.

    Window `n` holds the places `starts[n]` to `starts[n + 1]` of the epoch. In memory: a few numbers a chunk, and
    a window's rows while it is asked for.
    """

    def __init__(
        self, usable: NDArray[np.bool_], chunk_rows: int, *, window: int, shuffle: bool, seed: int, epoch: int
    ) -> None:
        counts = np.add.reduceat(usable, np.arange(0, len(usable), chunk_rows), dtype=np.int64)
        chunks = np.flatnonzero(counts)
        if shuffle:
            chunks = shuffled(chunks, seed, epoch)
        before = np.cumsum(counts[chunks]) - counts[chunks]
        self.rows = int(counts.sum())
        self.windows = max(1, min(-(-self.rows // window), len(chunks)))
        window_of = before * self.windows // max(1, self.rows)
        cuts = np.searchsorted(window_of, np.arange(self.windows + 1))
        self.starts: list[int] = np.append(before, self.rows)[cuts].tolist()
        self._chunks = np.split(chunks, cuts[1:-1])
        self._usable, self._chunk_rows = usable, chunk_rows
        self._shuffle, self._seed, self._epoch = shuffle, seed, epoch

    def window(self, number: int) -> Positions:
        """The positions of one window, in the order of the epoch."""
        rows = self._rows_of(np.sort(self._chunks[number])) if self.windows > 1 else np.flatnonzero(self._usable)
        return shuffled(rows, self._seed, self._epoch, number) if self._shuffle else rows

    def _rows_of(self, chunks: Positions) -> Positions:
        size = self._chunk_rows
        parts = (chunk * size + np.flatnonzero(self._usable[chunk * size :][:size]) for chunk in chunks)
        return np.concatenate([np.empty(0, np.int64), *parts])  # a window may hold no chunk


def shuffled(values: Positions, seed: int, *stream: int) -> Positions:
    """The values in an order that is uniformly drawn by a seed and the numbers of a stream.

    Sorts one 64-bit key a value: its place in the low bits, random ones above. Distinct keys leave a sort nothing
    to decide; two values' random bits (44 of them, for a million) are hardly ever the same.
    """
    bits = np.uint64(len(values).bit_length())
    draw = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=stream))
    keys = draw.random_raw(len(values)) >> bits << bits
    keys |= np.arange(len(values), dtype=np.uint64)
    keys.sort()
    keys &= (np.uint64(1) << bits) - np.uint64(1)
    return values[keys.view(np.int64)]
