"""What a data set is: it reads a publisher's layout and writes a manifest's rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from vlpipe.foundation.config import Config
from vlpipe.foundation.shelf import Shelf

SHELF = Shelf("vlpipe.manifests.datasets", "data set")
Row = Mapping[str, Any]


class Dataset(Protocol):
    """One published set. The constructor raises `VlpipeError`, saying what layout it expected under `root` and
    where that is published, when it does not find it.

    `root` is the publisher's folder (`--root`), or None for a set that is made; `folder` is the manifest's own
    folder, where a set that makes its pictures writes them.
    """

    Config: ClassVar[type[Config]]
    source: ClassVar[str]  # where it is published
    licence: ClassVar[str]

    def __init__(self, config: Any, root: Path | None, folder: Path) -> None: ...

    def image_root(self) -> Path:
        """The folder that image paths are relative to."""
        ...

    def images(self) -> Iterator[Row]:
        """Rows of images.parquet: image_id, path, split, and label or attributes where the set has them."""
        ...

    def texts(self) -> Iterator[Row]:
        """Rows of texts.parquet: text_id, text, image_id, role, split, and what else the set has."""
        ...


@runtime_checkable
class WithRegions(Protocol):
    """A data set that has boxes or masks too."""

    def regions(self) -> Iterator[Row]:
        """Rows of regions.parquet: region_id, image_id or text_id (or both), boxes or mask, label, attributes."""
        ...


@runtime_checkable
class WithCounts(Protocol):
    """A data set whose size is published, so that a part of it is told from the whole."""

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """Rows by split by table (images, texts), as published, under the settings at hand."""
        ...
