"""Itemized-cc0.3M: the first 300,000 pictures of CC3M with texts that are split into items.

"Learning complete and explainable visual representations from itemized text supervision" (ItemizedCLIP, 2026); the
shards are those of CC3M-recap (Zheng et al., "DreamLIP", ECCV 2024).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from vlpipe.manifests.datasets.webdataset import Webdataset, WebdatasetConfig
from vlpipe.manifests.shards import Sample

ITEMS = "first_300000_rewrites.json"
KEYS, PICTURES = 10_000, 5_000  # a shard's keys begin at a multiple of the one, and it holds the other


class ItemizedCcConfig(WebdatasetConfig):
    """Where the items are, and what stands in for pictures that have none there."""

    items: str = ITEMS  # a JSON object of lists of texts by index, under the root or anywhere
    captions: list[str] = Field(default=["json.shortIB_captions"], min_length=1)


class ItemizedCc(Webdataset):
    """`*.tar` with `KEY.jpg` and `KEY.json`, and first_300000_rewrites.json: `{"0": ["an item", ...], ...}`.

    A picture's index in that file is its JSON's `index`, else what its key says: key 20017 is the 17th of shard 2,
    which is index 10,017. A picture that the file does not hold has the captions of its JSON. The items' file is
    held in memory.
    """

    Config: ClassVar[type[ItemizedCcConfig]] = ItemizedCcConfig
    source: ClassVar[str] = "https://github.com/MLNeurosurg/ItemizedCLIP"
    title: ClassVar[str] = "Itemized-cc0.3M"
    expected: ClassVar[str] = f"CC3M-recap's tar shards with KEY.jpg and KEY.json, and {ITEMS} (setting 'items')"
    fallback: ClassVar[str | None] = "train"

    def __init__(self, config: ItemizedCcConfig, root: Path | None, folder: Path) -> None:
        super().__init__(config, root, folder)
        path = self.root / config.items  # an absolute path stays what it is
        items = self.layout.json(path)
        if not isinstance(items, dict) or not all(isinstance(value, list) for value in items.values()):
            raise self.layout.refuse(f"'{path}' is no JSON object of lists of texts by index")
        self.items: Mapping[str, list[Any]] = items

    def captions(self, sample: Sample) -> Iterator[tuple[str, Any]]:
        """The items of a picture; the captions of its JSON where it has none."""
        items = self.items.get(self._index(sample))
        if not items:
            yield from super().captions(sample)
        else:
            yield from (("items", item) for item in items)

    def _index(self, sample: Sample) -> str:
        record = self.record(sample)
        index = record.get("index") if isinstance(record, dict) else None
        if isinstance(index, str) and index.isdecimal():  # numbers are read as their digits
            return index
        name = sample.key.rpartition("/")[2]
        if not name.isdecimal() or int(name) % KEYS >= PICTURES:
            raise self.layout.refuse(
                f"sample '{sample.key}' has no index in its JSON, and its key is no number whose last four digits "
                f"are under {PICTURES}"
            )
        return str(int(name) // KEYS * PICTURES + int(name) % KEYS)
