"""Rows of one block through one encoder: each content is copied where it is known, else encoded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vlpipe.cache_store.donors import KnownRow
from vlpipe.cache_store.layout import HASH_BYTES, ArraySpec, Side, Status
from vlpipe.extract.contracts import Encoder, Prepared
from vlpipe.extract.prefetch import Failure
from vlpipe.foundation.errors import VlpipeError

# Tokens of a batch of texts, for each row of a batch of pictures: 1,024 for 64 are the fastest through MiniLM on a
# CPU, where 16,384 take 1.7 times as long as they leave its cache; a GPU wants many.
TOKENS_CPU, TOKENS_GPU = 16, 256
Result = tuple[bytes, Prepared | KnownRow] | Failure  # with the content hash
Find = Callable[[bytes], KnownRow | None]  # by content hash
Waiting = list[tuple[int, Prepared]]  # rows with their places


def nothing_known(content: bytes) -> None:
    """A `Find` that has everything encoded."""


@dataclass(frozen=True)
class Work:
    """How rows are encoded; `outputs` are the arrays to fill, `root` is what picture paths are relative to.

    A batch has `batch_size` pictures, or as many texts as have at most `tokens`, padding counted. `workers` are
    processes that decode, with a thread each that reads and prepares.
    """

    encoder: Encoder
    side: Side
    outputs: Mapping[str, ArraySpec]
    root: Path
    batch_size: int
    workers: int
    tokens: int | None = None

    @property
    def most_tokens(self) -> int:
        """`tokens`, or what is best for the encoder's device and `batch_size`."""
        cpu = str(getattr(self.encoder, "device", "cpu")).startswith("cpu")
        return self.tokens or self.batch_size * (TOKENS_CPU if cpu else TOKENS_GPU)


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


class BlockEncoder:
    """Encodes `count` rows, all of one block, as they are taken; what fails is that row's failure only.

    Content that has become known since it was prepared is copied, too. So the batches depend on the rows and on
    what `find` knows alone, never on how far preparing was ahead, and a block that is done again comes out equal
    to the bit. Pictures are encoded as they come, texts at the end, by length, which pads less.
    """

    def __init__(self, work: Work, count: int, find: Find = nothing_known) -> None:
        self.taken = 0
        self._work, self._find = work, find
        self._found = Encoded.empty(work, count)
        self._first: dict[bytes, int] = {}
        self._repeats: list[tuple[int, int]] = []
        self._waiting: Waiting = []

    def take(self, result: Result) -> None:
        """The next row. Raises `VlpipeError` for a batch that cannot be encoded."""
        row, found = self.taken, self._found
        self.taken += 1
        if isinstance(result, Failure):
            found.failures[row] = result.reason
            return
        content, prepared = result
        found.content_hash[row] = np.frombuffer(content, np.uint8)
        if content in self._first:
            self._repeats.append((row, self._first[content]))
            return
        known = prepared if isinstance(prepared, KnownRow) else self._find(content) or prepared
        if isinstance(known, KnownRow):
            found.copy(row, known)
            return
        self._first[content] = row
        found.status[row] = Status.CUT if any(known.cut) else Status.OK
        self._waiting.append((row, known))
        if self._work.side == "image" and len(self._waiting) == self._work.batch_size:
            _encode(self._work, self._waiting, found)
            self._waiting = []

    def finish(self) -> Encoded:
        """All rows, when all are taken."""
        batches = [self._waiting] if self._work.side == "image" else by_length(self._work, self._waiting)
        for batch in filter(None, batches):
            _encode(self._work, batch, self._found)
        for row, same in self._repeats:
            self._found.copy(row, self._found.known(same))
        return self._found


def encode_rows(work: Work, results: Iterator[Result], count: int) -> Encoded:
    """Encode the next `count` prepared rows as one block."""
    block = BlockEncoder(work, count)
    for result in islice(results, count):
        block.take(result)
    return block.finish()


def by_length(work: Work, rows: Waiting) -> Iterator[Waiting]:
    """Batches of texts of about one length and at most so many tokens; the longest come first, for the memory."""
    left = sorted(rows, key=lambda entry: -_size(entry[1]))
    while left:
        # Padded as the encoder pads, which may be to more than the longest.
        longest = max(tensor.numel() for tensor in work.encoder.collate([left[0][1]]).tensors.values())
        count = max(1, work.most_tokens // max(longest, 1))
        yield left[:count]
        left = left[count:]


def _size(prepared: Prepared) -> int:
    return sum(tensor.numel() for tensor in prepared.tensors.values())


def _encode(work: Work, batch: Waiting, found: Encoded) -> None:
    places = [row for row, _ in batch]
    together = work.encoder.collate([prepared for _, prepared in batch])
    try:
        rows = work.encoder.encode(together, tuple(work.outputs))
    except torch.cuda.OutOfMemoryError:
        smaller = "--batch-size" if work.side == "image" else "--tokens-per-batch"
        raise VlpipeError(
            f"a batch of {len(batch)} does not fit the device's memory; run again with a smaller {smaller}, "
            "committed blocks are kept"
        ) from None
    for name, spec in work.outputs.items():
        values = rows[name].float().cpu().numpy()
        if values.shape != (len(batch), *spec.shape):
            raise VlpipeError(f"output '{name}' came as {values.shape}, expected {(len(batch), *spec.shape)}")
        found.rows[name][places] = values
