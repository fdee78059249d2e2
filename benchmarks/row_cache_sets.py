"""The two sets that the row cache is measured on, and how each is written."""

from __future__ import annotations

import math
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vlpipe.cache_store.behind import WriteBehind
from vlpipe.cache_store.layout import ArraySpec
from vlpipe.cache_store.values import BlockRows
from vlpipe.cache_store.writer import StoreWriter

Rows = npt.NDArray[np.float16]
SIZES = {"pooled": (200_000, (768,), 1024), "tokens": (4_000, (196, 512), 64)}  # rows, shape, batch


@dataclass(frozen=True)
class Work:
    """One set: its rows, where they lie in each form, and how many make a batch."""

    name: str
    rows: int
    shape: tuple[int, ...]
    batch: int
    folder: Path

    @property
    def store(self) -> Path:
        """The same rows as a store."""
        return self.folder / "x" / "random.image.zarr"

    @property
    def plain(self) -> Path:
        """And as one .npy file."""
        return self.folder / "rows.npy"

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return 2 * math.prod(self.shape)

    def values(self) -> Rows:
        """The rows, in memory."""
        made = np.empty((self.rows, *self.shape), np.float16)
        draw = np.random.default_rng(0)
        for start in range(0, self.rows, 200):
            made[start : start + 200] = draw.standard_normal((200, *self.shape), np.float32)
        return made

    def ids(self) -> list[str]:
        """An id a row."""
        return [f"image {row:07d}" for row in range(self.rows)]


def write_store(work: Work, values: Rows, path: Path) -> None:
    """All rows through vlpipe's writer, block by block, each committed."""
    writer = StoreWriter.open(
        path, manifest="0" * 64, side="image", encoder="random", ids=work.ids(), constants={},
        outputs={"x": ArraySpec(work.shape)}, fingerprints={"x": {"weights": "random"}},
    )  # fmt: skip
    with WriteBehind() as behind:
        for block in writer.missing():
            span = slice(writer.span(block).start, writer.span(block).stop)
            count = span.stop - span.start
            content = np.zeros((count, 16), np.uint8)
            content[:, :8] = np.arange(span.start, span.stop, dtype="<u8")[:, None].view(np.uint8)
            claim = ExitStack()
            claim.enter_context(writer.claim(block))
            given = BlockRows({"x": values[span]}, np.ones(count, np.uint8), content)
            behind.write(writer, block, writer.check(block, given), claim)


def write_plain(values: Rows, path: Path) -> None:
    """`np.save`, then fsync."""
    with path.open("wb") as file:
        np.save(file, values)
        file.flush()
        os.fsync(file.fileno())


def made(name: str, folder: Path, shrink: int) -> Work:
    """A set's work, its files written if they are not there."""
    rows, shape, batch = SIZES[name]
    rows //= shrink
    work = Work(name, rows, shape, batch, folder / f"{name}-{rows}")
    work.folder.mkdir(parents=True, exist_ok=True)
    if not (work.folder / "made").exists():
        values = work.values()
        write_plain(values, work.plain)
        write_store(work, values, work.store)
        (work.folder / "made").touch()
    return work
