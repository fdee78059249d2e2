"""Some rows of one block: each content is copied where it is known, else encoded once, in batches of the block."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vlpipe.cache_store.donors import KnownRow
from vlpipe.cache_store.layout import HASH_BYTES, ArraySpec, Side, Status
from vlpipe.extract.contracts import Encoder, ImageItem, Prepared, TextItem
from vlpipe.extract.pictures import content_hash, decode, read_bytes
from vlpipe.extract.prefetch import Failure, prefetch
from vlpipe.foundation.errors import VlpipeError

AHEAD = 4  # items in work or waiting per worker, beside one batch
Result = tuple[bytes, Prepared | KnownRow] | Failure
Find = Callable[[bytes], KnownRow | None]  # by content hash


def nothing_known(content: bytes) -> None:
    """A `Find` that has everything encoded."""


@dataclass(frozen=True)
class Source:
    """One manifest row: its id, its path or its text, and where its content may be known already."""

    id: str
    content: str
    find: Find = nothing_known


@dataclass(frozen=True)
class Work:
    """How rows are encoded; `outputs` are the arrays to fill, `root` is what picture paths are relative to."""

    encoder: Encoder
    side: Side
    outputs: Mapping[str, ArraySpec]
    root: Path
    batch_size: int
    workers: int


@dataclass
class Encoded:
    """Rows in the order given: `rows[output]` float32 (rows, *shape), status, content hash, failures' reasons.

    `copied` counts those whose content was known.
    """

    rows: dict[str, NDArray[np.float32]]
    status: NDArray[np.uint8]
    content_hash: NDArray[np.uint8]
    failures: dict[int, str] = field(default_factory=dict)
    copied: int = 0

    @classmethod
    def empty(cls, work: Work, rows: int) -> Encoded:
        """All rows zero and failed."""
        arrays = {name: np.zeros((rows, *spec.shape), np.float32) for name, spec in work.outputs.items()}
        status = np.full(rows, Status.FAILED, np.uint8)
        return cls(arrays, status, np.zeros((rows, HASH_BYTES), np.uint8))

    def copy(self, row: int, known: KnownRow) -> None:
        """Take a row over to the bit: both dtypes of the cache fit float32."""
        for name, values in self.rows.items():
            values[row] = known.rows[name]
        self.status[row] = known.status
        self.copied += 1

    def known(self, row: int) -> KnownRow:
        """One of these rows, to be copied."""
        return KnownRow({name: values[row] for name, values in self.rows.items()}, int(self.status[row]))

    def zero_norm(self) -> int:
        """Usable rows of which some output is zero throughout: they have no direction."""
        zero = np.zeros(len(self.status), bool)
        for values in self.rows.values():
            zero |= ~values.reshape(len(values), -1).any(axis=1)
        return int((zero & (self.status != Status.FAILED)).sum())


def prepare_rows(work: Work, sources: Iterable[Source]) -> Generator[Result, None, None]:
    """Content hash and tensors of each row, in order, prepared ahead in threads; closing it ends them.

    A row whose content is known is not decoded: the known row comes in place of its tensors.
    """
    # Tokenizers hold a lock, and a text costs less than handing it to a thread.
    workers = work.workers if work.side == "image" else 0
    return prefetch(partial(_prepare, work), sources, workers, AHEAD * workers + work.batch_size)


def encode_rows(work: Work, results: Iterator[Result], count: int, find: Find = nothing_known) -> Encoded:
    """Encode the next `count` prepared rows, all of one block; what fails is that row's failure only.

    Content that has become known since it was prepared is copied, too. So the batches depend on the rows and on
    what `find` knows alone, never on how far preparing was ahead, and a block that is done again comes out equal
    to the bit. Pictures are encoded as they come, texts by length, which pads less.
    """
    found = Encoded.empty(work, count)
    first: dict[bytes, int] = {}
    repeats: list[tuple[int, int]] = []
    waiting: list[tuple[int, Prepared]] = []
    for row, result in enumerate(islice(results, count)):
        if isinstance(result, Failure):
            found.failures[row] = result.reason
            continue
        content, prepared = result
        found.content_hash[row] = np.frombuffer(content, np.uint8)
        if content in first:
            repeats.append((row, first[content]))
            continue
        known = prepared if isinstance(prepared, KnownRow) else find(content) or prepared
        if isinstance(known, KnownRow):
            found.copy(row, known)
            continue
        first[content] = row
        found.status[row] = Status.CUT if any(known.cut) else Status.OK
        waiting.append((row, known))
        if work.side == "image" and len(waiting) == work.batch_size:
            _encode(work, waiting, found)
            waiting = []
    waiting.sort(key=lambda entry: sum(tensor.numel() for tensor in entry[1].tensors.values()))
    for start in range(0, len(waiting), work.batch_size):
        _encode(work, waiting[start : start + work.batch_size], found)
    for row, same in repeats:
        found.copy(row, found.known(same))
    return found


def read_content(work: Work, source: Source) -> tuple[bytes, bytes]:
    """The hash of an item's content and the content: its file's bytes, or its text's UTF-8, exactly."""
    text = work.side == "text"
    data = source.content.encode("utf-8") if text else read_bytes(work.root / source.content)
    return content_hash(data), data


def _prepare(work: Work, source: Source) -> tuple[bytes, Prepared | KnownRow]:
    content, data = read_content(work, source)
    if known := source.find(content):
        return content, known
    text = work.side == "text"
    item = TextItem(source.id, source.content) if text else ImageItem(source.id, decode(data))
    return content, work.encoder.prepare(item)


def _encode(work: Work, batch: list[tuple[int, Prepared]], found: Encoded) -> None:
    places = [row for row, _ in batch]
    together = work.encoder.collate([prepared for _, prepared in batch])
    try:
        rows = work.encoder.encode(together, tuple(work.outputs))
    except torch.cuda.OutOfMemoryError:
        raise VlpipeError(
            f"a batch of {len(batch)} does not fit the device's memory; run again with a smaller --batch-size, "
            "committed blocks are kept"
        ) from None
    for name, spec in work.outputs.items():
        values = rows[name].float().cpu().numpy()
        if values.shape != (len(batch), *spec.shape):
            raise VlpipeError(f"output '{name}' came as {values.shape}, expected {(len(batch), *spec.shape)}")
        found.rows[name][places] = values
