"""Captions of a manifest, and the rows that are made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from vlpipe.manifests.contracts import Row
from vlpipe.manifests.manifest import Manifest

COLUMNS = ("text_id", "text", "image_id", "role", "split")


@dataclass(frozen=True)
class Caption:
    """A text of role caption."""

    text_id: str
    text: str
    image_id: str | None
    split: str | None

    def derived(self, name: str, role: str, text: str, attributes: Mapping[str, Any]) -> Row:
        """A row that belongs to this caption, id `CAPTION@NAME`; attributes that are no texts become JSON."""
        told = {
            key: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for key, v in attributes.items()
        }
        return {
            "text_id": f"{self.text_id}@{name}",
            "text": text,
            "image_id": self.image_id,
            "role": role,
            "source_text_id": self.text_id,
            "split": self.split,
            "attributes": told,
        }


def captions(manifest: Manifest, rows: int) -> Iterator[list[Caption]]:
    """The manifest's captions in order: those among each `rows` texts."""
    for batch in manifest.batches("text", COLUMNS, rows):
        yield [
            Caption(row["text_id"], row["text"], row["image_id"], row["split"])
            for row in batch.to_pylist()
            if row["role"] == "caption"
        ]


def by_image(manifest: Manifest) -> Iterator[list[Caption]]:
    """The captions of one image after the other, images in the order of their first caption; a caption without an
    image is alone.

    Holds ids and texts of all captions as Arrow columns, about 200 bytes each.
    """
    table = manifest.table("text", COLUMNS)
    table = table.filter(pc.equal(table["role"], "caption")).drop_columns(["role"])
    ids = pc.coalesce(table["image_id"], pc.binary_join_element_wise("", table["text_id"], "\0"))
    codes = ids.combine_chunks().dictionary_encode().indices.to_numpy()  # numbered as they first occur
    order = np.argsort(codes, kind="stable")
    cuts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for start, end in zip(cuts, [*cuts[1:], len(order)], strict=True):
        yield [Caption(**row) for row in table.take(order[start:end]).to_pylist()]
