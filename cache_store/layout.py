"""Where features lie on disk, format 1, and the words for what a store holds.

    CACHE/<manifest digest, 12 digits>/<encoder slug>.<side>.zarr/
        zarr.json                    the group; attribute `vlpipe`: manifest, side, encoder, rows, block size
        <output>/zarr.json           one array per output, (rows, *shape); attribute `vlpipe`: its fingerprint
        <output>/c.<file>.0...       a chunk: plain little-endian rows, then their crc32c in 4 bytes; or a shard
        content_hash/                uint8 (rows, 16): what was encoded, one chunk a block
        status/                      uint8 (rows,): a `Status` each, one chunk a block
        status/rows.parquet          the ids, in row order
        status/blocks/<block>.json   the marker that commits a block
        status/locks/<block>         what a block's writer holds; empty

The last three stand inside the `status` array's folder because zarr-python (3.1), when it lists a group's members,
warns about every child of the group's folder that is neither array nor group, hidden ones too; it never looks
inside an array's folder. So opening, reading and `members()`, also to the bottom, are silent for a store.

A chunk's key has dots instead of slashes: files of one folder last after one sync of it, not one for each level.

An array of very many chunks, several a block, has one shard a block. A shard is written whole, so it cannot
be more than what is committed at a time: 256 MiB at most, where stores that are written once take 1 GiB. A set of
10 million rows of 256 x 384 float16 tokens is then 9,800 files of 192 MiB instead of 156,000 of 12 MiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from vlpipe.cache_store.places import Place, refuse_remote
from vlpipe.foundation.errors import UsageError

FORMAT = 1
AnyPlace = TypeVar("AnyPlace", bound=Place)
Side = Literal["image", "text"]
DTYPES = ("float16", "float32")
STATUS = "status"
CONTENT_HASH = "content_hash"
HASH_BYTES = 16
CHUNK_BYTES = 16 << 20
BLOCK_BYTES = 256 << 20
BLOCK_ROWS = 1 << 14
LEAST_ROWS: Mapping[Side, int] = {"image": 64, "text": 1024}  # of a block, where the set has them
# 2,048 chunks of 8 to 16 MiB are 16 to 32 GiB: up to there the files of a set are listed, copied and uploaded
# in little time, and a chunk of its own is the simplest to read; above, their number begins to cost.
MANY_CHUNKS = 2048


class Status(IntEnum):
    """What is known of one row."""

    ABSENT = 0
    OK = 1
    FAILED = 2
    CUT = 3  # usable, but the encoder saw only the beginning of the text


USABLE = (Status.OK, Status.CUT)


@dataclass(frozen=True)
class ArraySpec:
    """One output: the shape of one row, and the dtype it is kept in ('float16' or 'float32').

    Raises `UsageError` for any other dtype, and for a size below 1.
    """

    shape: tuple[int, ...]
    dtype: str = "float16"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype '{self.dtype}': the cache keeps {' or '.join(DTYPES)}")
        if any(size < 1 for size in self.shape):
            raise UsageError(f"rows of shape {self.shape}: expected every size to be at least 1")

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def slug(spec: str) -> str:
    """The folder name of an encoder spec: `hf:facebook/dinov2-small` -> `hf-facebook--dinov2-small`.

    A local path (absolute, or beginning with `.` or `~`) is named by its last part only, so that a cache
    does not depend on where models lie; two models of one name are told apart by their fingerprints.
    """
    shelf, colon, model = spec.partition(":")
    if model.startswith(("/", "./", "../", "~")) or model in (".", ".."):
        model = model.rstrip("/").rpartition("/")[2]
    text = shelf + (f"-{model}" if colon else "")
    return re.sub(r"[^A-Za-z0-9._@-]+", lambda m: "--" if "/" in m.group() else "-", text)


def store_path(cache: Path, manifest_digest: str, name: str, side: Side) -> Path:
    """`CACHE/<manifest digest, 12 digits>/<encoder slug>.<side>.zarr`; `name` is a spec or its slug.

    Raises `UsageError` for a URL: `open_features` takes one, commands work on a local folder.
    """
    refuse_remote(cache)
    return cache / manifest_digest[:12] / f"{slug(name)}.{side}.zarr"


def check_output_name(name: str) -> None:
    """An output's name is a folder beside `status`; raises `UsageError` when it cannot be one."""
    if name in (STATUS, CONTENT_HASH) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]*", name):
        raise UsageError(
            f"output '{name}': expected letters, digits and . _ @ - only, and not '{STATUS}' or '{CONTENT_HASH}'"
        )


def rows_path(store: AnyPlace) -> AnyPlace:
    """The table of ids."""
    return store / STATUS / "rows.parquet"


def marker_path(store: AnyPlace, block: int) -> AnyPlace:
    """The file whose presence commits a block."""
    return store / STATUS / "blocks" / f"{block}.json"


def lock_path(store: Path, block: int) -> Path:
    """The file that a block's writer holds locked."""
    return store / STATUS / "locks" / str(block)


def power_of_two(number: float) -> int:
    """The largest power of two that is not above a number, at least 1."""
    return 1 << max(0, int(number).bit_length() - 1)


def default_block_rows(
    rows: int, outputs: Iterable[ArraySpec], widest: int = 0, least: int = LEAST_ROWS["image"]
) -> int:
    """Rows per block: the unit of commit, locking, resume and of memory while encoding; a power of two.

    About 32 blocks a set, so that a small set on a slow CPU still commits every few percent of its time, but
    not under `least` rows (64 pictures are a batch: below, syncing would cost more than encoding; 1,024 texts
    are what sorting by length needs) nor over what fills one
    chunk of the narrowest output (beyond, larger blocks only lose more work in a kill) nor over 16,384 rows (their
    items are in memory together, too). Over all of these stands
    memory: these outputs of a block together fit 256 MiB, and so does alone any that may be added later, of which
    the widest has rows of `widest` bytes. They do not add up: a model may have hundreds of outputs, of which few
    are asked. And a store is never padded to more than twice its rows.

    For 384 numbers a row and tokens of 256 x 384, in float16: 3,750 rows make blocks of 128 (96 KiB pooled,
    24 MiB tokens), 2 million make blocks of 1,024 (768 KiB, 192 MiB).
    """
    sizes = [output.row_bytes for output in outputs]
    near = power_of_two(rows / 32 * 2**0.5)  # the nearest power of two, in ratio
    wanted = max(least, min(near, BLOCK_ROWS, power_of_two(CHUNK_BYTES / min(sizes))))
    return min(wanted, power_of_two(BLOCK_BYTES / max(sum(sizes), widest)), power_of_two(2 * rows - 1))


def default_chunk_rows(block_rows: int, row_bytes: int) -> int:
    """Rows per chunk: whole rows, about 16 MiB at most, a power of two that divides the block."""
    return min(block_rows, power_of_two(CHUNK_BYTES / row_bytes))


def default_file_rows(rows: int, block_rows: int, chunk_rows: int) -> int:
    """Rows per file: a chunk's, or a block's where there would be more than `MANY_CHUNKS` files otherwise."""
    return block_rows if -(-rows // chunk_rows) > MANY_CHUNKS else chunk_rows
