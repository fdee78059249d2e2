"""The content of a small store, and, run as a script, a process that writes it and is killed at a chosen sync.

python sample_store.py STORE SYNCS SECONDS    SYNCS: die instead of that fsync (0: never); SECONDS: pause a block
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlpipe.cache_store.layout import ArraySpec
from vlpipe.cache_store.writer import StoreWriter

OUTPUTS = {"pooled": ArraySpec((5,)), "tokens": ArraySpec((3, 2), "float32"), "norm": ArraySpec(())}
ROWS, BLOCK_ROWS = 37, 8


def ids(rows: int = ROWS) -> list[str]:
    """Ids with blanks, accents and a slash."""
    return [f"set a/é {row:03d}.JPG" for row in range(rows)]


def values(name: str, rows: int = ROWS) -> NDArray[Any]:
    """What the encoder would give, in float32; row 3 is zero."""
    found = np.random.default_rng([rows, *name.encode()]).standard_normal((rows, *OUTPUTS[name].shape), np.float32)
    found[3:4] = 0
    return found


def hashes(rows: int = ROWS) -> NDArray[np.uint8]:
    """A content hash a row."""
    return np.random.default_rng(1).integers(0, 256, (rows, 16), np.uint8)


def statuses(rows: int = ROWS, failed: Iterable[int] = (), cut: Iterable[int] = ()) -> NDArray[np.uint8]:
    """A status a row, ok where nothing else is said."""
    status = np.ones(rows, np.uint8)
    status[list(failed)] = 2
    status[list(cut)] = 3
    return status


def open_writer(
    path: Path, outputs: Mapping[str, ArraySpec] = OUTPUTS, *, rows: int = ROWS, **changed: Any
) -> StoreWriter:
    """The writer of the sample, with some of its arguments changed."""
    asked: dict[str, Any] = {
        "manifest": "m" * 64,
        "side": "image",
        "encoder": "hf:tiny",
        "ids": ids(rows),
        "fingerprints": {name: {"weights": "w1", "precision": "float32"} for name in outputs},
        "constants": {"logit_scale": 4.5},
        "block_rows": BLOCK_ROWS,
    }
    return StoreWriter.open(path, outputs=outputs, **{**asked, **changed})


def fill(
    writer: StoreWriter,
    names: Iterable[str] = OUTPUTS,
    blocks: Iterable[int] | None = None,
    *,
    rows: int = ROWS,
    status: NDArray[np.uint8] | None = None,
    content: NDArray[np.uint8] | None = None,
    pause: float = 0,
) -> list[int]:
    """Write the given blocks, or the missing ones; returns those that were written."""
    status = statuses(rows) if status is None else status
    content = hashes(rows) if content is None else content
    done = []
    for block in writer.missing() if blocks is None else blocks:
        with writer.claim(block) as mine:
            if mine:
                span = slice(writer.span(block).start, writer.span(block).stop)
                writer.write(block, {n: values(n, rows)[span] for n in names}, status[span], content[span])
                done.append(block)
        time.sleep(pause)
    return done


def die_at(sync: int) -> None:
    """Kill this process, as by `kill -9`, instead of its nth fsync."""
    real, calls = os.fsync, 0

    def counted(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == sync:
            os.kill(os.getpid(), signal.SIGKILL)
        real(handle)

    os.fsync = counted


if __name__ == "__main__":
    die_at(int(sys.argv[2]))
    print("ready", flush=True)
    fill(open_writer(Path(sys.argv[1])), pause=float(sys.argv[3]))
