"""Which rows of a manifest an evaluation asks about, and which of them can take part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vlpipe.cache_store.errors import NotCachedError
from vlpipe.cache_store.layout import Side, Status
from vlpipe.evaluate.contracts import IntArray
from vlpipe.heads.data import Joined
from vlpipe.heads.splits import COLUMN, canonical
from vlpipe.manifests.manifest import Manifest


@dataclass(frozen=True)
class Asked:
    """Positions of the images of a split (None: of all), and of the texts of some manifest roles that belong to
    them, or to no image and to this split or to none; whether they are cached or not.
    """

    joined: Joined
    images: IntArray
    texts: IntArray

    @classmethod
    def of(cls, joined: Joined, split: str | None, kinds: Sequence[str], manifest: Path) -> Asked:
        """What a task asks about that reads texts of these manifest roles."""
        every = np.ones(len(joined.image_ids), dtype=np.bool_)
        own = every if split is None else joined.split == canonical(split)
        wanted = np.append(own, True)  # position -1: no image
        kinds = kinds if joined.text_roles else ()  # a run of images alone is asked about no text
        texts = np.flatnonzero(wanted[joined.text_image] & np.isin(joined.text_role, list(kinds)))
        return cls(joined, np.flatnonzero(own), _of_split(split, texts, joined, manifest))

    def usable(self) -> tuple[IntArray, IntArray]:
        """Positions of the images and texts that can be scored; a text of an image that cannot be is none."""
        seen = np.append(self.joined.seen, True)  # position -1: no image
        has_row = [self.joined.sources[role].usable for role in self.joined.text_roles[:1]]
        there = np.all([rows[self.texts] for rows in has_row], axis=0) & seen[self.joined.text_image[self.texts]]
        return self.images[seen[self.images]], self.texts[there]

    def left_out(self) -> dict[str, int]:
        """How many images and texts cannot be scored."""
        images, texts = self.usable()
        return {"images": len(self.images) - len(images), "texts": len(self.texts) - len(texts)}

    def notes(self) -> list[str]:
        """What a reader must know of the rows that are left out."""
        left = self.left_out()
        if not any(left.values()):
            return []
        return [
            f"left out, because they or their image failed to be encoded: {left['images']} of {len(self.images)} "
            f"images and {left['texts']} of {len(self.texts)} texts"
        ]

    def check_encoded(self) -> None:
        """Raise `NotCachedError` when some rows were never encoded: numbers over the others would be too good."""
        missing = {}
        for role in (*self.joined.image_roles, *self.joined.text_roles[:1]):
            features = self.joined.sources[role].features
            asked = self.images if features.side == "image" else self.texts
            absent = int((features.status[asked] == Status.ABSENT).sum())
            if absent:
                missing[features.path] = f"{absent} of {len(asked)} {features.side}s in '{features.path}'"
        if missing:
            raise NotCachedError(
                f"never encoded, of the split's: {' and '.join(missing.values())}; numbers over the others would "
                "be too good; run the same `vlpipe extract` command again, it goes on where it stopped"
            )


def _of_split(split: str | None, texts: IntArray, joined: Joined, manifest: Path) -> IntArray:
    """Without the texts that belong to no image and to another split; a random rule splits images alone."""
    alone = joined.text_image[texts] < 0
    if split is None or joined.rule != COLUMN or not alone.any():
        return texts
    own = columns_at(manifest, "text", ("split",), texts[alone])["split"]
    kept = ~alone
    kept[alone] = [name is None or canonical(name) == canonical(split) for name in own]
    return texts[kept]


def columns_at(manifest: Path, side: Side, names: Sequence[str], positions: IntArray) -> dict[str, list[Any]]:
    """Columns of some rows of a manifest's table; "attributes" is a dict a row. Nothing is opened for no names."""
    if not names:
        return {}
    table = Manifest.open(manifest).table(side, names).take(pa.array(positions))
    found: dict[str, list[Any]] = {name: table[name].to_pylist() for name in names}
    return {name: [dict(v or ()) for v in rows] if name == "attributes" else rows for name, rows in found.items()}
