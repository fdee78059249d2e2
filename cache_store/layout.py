"""Where features lie on disk, format 1, and the words for what a store holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Literal

from vlpipe.foundation.errors import UsageError

FORMAT = 1
Side = Literal["image", "text"]
DTYPES = ("float16", "float32")


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

    Raises `UsageError` for any other dtype.
    """

    shape: tuple[int, ...]
    dtype: str = "float16"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype '{self.dtype}': the cache keeps {' or '.join(DTYPES)}")


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
    """`CACHE/<manifest digest, 12 digits>/<encoder slug>.<side>.zarr`; `name` is a spec or its slug."""
    return cache / manifest_digest[:12] / f"{slug(name)}.{side}.zarr"
