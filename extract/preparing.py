"""From manifest rows to tensors: a row is read, and its picture decoded, once for all encoders that miss it."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from vlpipe.cache_store.donors import KnownRow
from vlpipe.extract.contracts import ImageItem, Item, TextItem
from vlpipe.extract.decoding import Decoders
from vlpipe.extract.pictures import content_hash, read_bytes
from vlpipe.extract.prefetch import Failure, attempt, prefetch
from vlpipe.extract.rows import Result, Work

AHEAD = 4  # items in work or waiting per worker, beside one batch


class Taker(Protocol):
    """Who a row is prepared for: one encoder and what is known of its rows."""

    def find(self, content: bytes) -> KnownRow | None:
        """The row of a content hash, where it is known."""
        ...


T = TypeVar("T", bound=Taker)


@dataclass(frozen=True)
class Source(Generic[T]):
    """One manifest row: its id, its path or its text, and for each work who takes it, if anybody does."""

    id: str
    content: str
    takers: tuple[T | None, ...]


@dataclass(frozen=True)
class Ready(Generic[T]):
    """A row with what each taker gets; None where there is none."""

    source: Source[T]
    results: tuple[Result | None, ...]


def prepare_rows(works: Sequence[Work], sources: Iterable[Source[T]]) -> Generator[Ready[T], None, None]:
    """Content hash and tensors of each row, in order, prepared ahead in threads; closing it ends them.

    The works are of one side of one manifest. For whom a row's content is known, the known row comes in place of
    tensors; where it is for all, a picture is not decoded. Pictures are decoded in as many processes.
    """
    # Tokenizers hold a lock, and a text costs less than handing it to a thread.
    workers = works[0].workers if works[0].side == "image" else 0
    ahead = AHEAD * workers + max(work.batch_size for work in works)
    with ExitStack() as stack:
        decoders = stack.enter_context(closing(Decoders(workers)))
        prepare = partial(_prepare, works, decoders)
        prepared = stack.enter_context(closing(prefetch(prepare, sources, workers, ahead, decoders.stop)))
        for ready in prepared:
            if isinstance(ready, Failure):
                raise TypeError(f"preparing failed outside of any item: {ready.reason}")
            yield ready


def prepare_alone(work: Work, ids: Iterable[str], contents: Iterable[str]) -> Iterator[Result]:
    """The same of some rows for one encoder, which knows none of them."""
    taker = _Newcomer()
    sources = (Source(id, content, (taker,)) for id, content in zip(ids, contents, strict=True))
    for ready in prepare_rows([work], sources):
        yield from (result for result in ready.results if result is not None)


class _Newcomer:
    def find(self, content: bytes) -> KnownRow | None:
        """Nothing is known."""
        return None


def read_content(work: Work, content: str) -> tuple[bytes, bytes]:
    """The hash of an item's content and the content: its file's bytes, or its text's UTF-8, exactly."""
    data = content.encode("utf-8") if work.side == "text" else read_bytes(work.root / content)
    return content_hash(data), data


def _prepare(works: Sequence[Work], decoders: Decoders, source: Source[T]) -> Ready[T]:
    """What fails is the failure of those takers that need it."""
    read = attempt(partial(read_content, works[0]), source.content)
    if isinstance(read, Failure):
        return Ready(source, tuple(read if taker else None for taker in source.takers))
    content, data = read
    known = [taker.find(content) if taker else None for taker in source.takers]
    item: Item | Failure | None = None
    results: list[Result | None] = []
    for work, taker, row in zip(works, source.takers, known, strict=True):
        if taker is None or row is not None:
            results.append((content, row) if row is not None else None)
            continue
        if item is None:
            item = attempt(partial(_item, work, decoders, source), data)
        prepared = item if isinstance(item, Failure) else attempt(work.encoder.prepare, item)
        results.append(prepared if isinstance(prepared, Failure) else (content, prepared))
    return Ready(source, tuple(results))


def _item(work: Work, decoders: Decoders, source: Source[T], data: bytes) -> Item:
    if work.side == "text":
        return TextItem(source.id, source.content)
    return ImageItem(source.id, decoders.decode(data))
