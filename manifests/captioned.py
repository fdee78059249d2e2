"""Photos with captions: what the data sets of them share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from vlpipe.foundation.config import Config
from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.layouts import Layout

SHOWN = 3


class PhotoConfig(Config):
    """Where the photos of a set are that is published without them."""

    images: str | None = None  # their folder; default: in the set's own folder, or beside it
    absent: Literal["refuse", "leave_out", "keep"] = "refuse"  # what becomes of rows whose photo is not there


class DescribedConfig(PhotoConfig):
    """Whether a long description is one text, or a text for each sentence (`in_sentences`)."""

    sentences: bool = False


@dataclass(frozen=True)
class Photo:
    """One photo: `path` is relative to the set's photo folder; `captions` are texts by id, to the letter."""

    id: str
    path: str
    split: str | None = None
    captions: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)

    def image(self) -> Row:
        """Its row of images.parquet."""
        row = {"image_id": self.id, "path": self.path, "split": self.split}
        return row | {"attributes": self.attributes} if self.attributes else row

    def text(self, text_id: str, text: str, role: str = "caption", source: str | None = None, **more: str) -> Row:
        """One row of texts.parquet that belongs to it; `more` are the text's attributes."""
        row = {"text_id": text_id, "text": text, "image_id": self.id, "role": role, "split": self.split}
        row |= {"source_text_id": source} if source is not None else {}
        return row | {"attributes": more} if more else row

    def texts(self) -> Iterator[Row]:
        """One row a caption."""
        for text_id, text in self.captions.items():
            yield self.text(text_id, text)

    def in_sentences(self) -> Photo:
        """With the sentences of every caption instead, `ID.0`, `ID.1`, ..., without their full stops.

        A sentence ends at a full stop and a blank, as the texts that FLAIR (Xiao et al., CVPR 2025) and TEVI
        retrieve among end there.
        """
        cut = {text_id: re.split(r"\.(?:\s+|$)", text) for text_id, text in self.captions.items()}
        kept = {text_id: [part.strip() for part in parts if part.strip()] for text_id, parts in cut.items()}
        captions = {f"{text_id}.{n}": part for text_id, parts in kept.items() for n, part in enumerate(parts)}
        return replace(self, captions=captions)


class Captioned:
    """The part of a data set that yields its photos' rows; a constructor sets both attributes."""

    folder: Path  # of the photos
    photos: Sequence[Photo]

    def image_root(self) -> Path:
        """The photos' folder."""
        return self.folder

    def images(self) -> Iterator[Row]:
        """One row a photo."""
        for photo in self.photos:
            yield photo.image()

    def texts(self) -> Iterator[Row]:
        """One row a caption, photo by photo."""
        for photo in self.photos:
            yield from photo.texts()


def photo_folder(layout: Layout, root: Path, names: Sequence[str], config: PhotoConfig) -> Path:
    """The folder that is given, or the first of `names` under `root`.

    Raises `VlpipeError` where there is none, but where photos that are absent are kept.
    """
    if config.images is None:
        kept = config.absent == "keep" and not layout.find(root, *names)
        return root / names[0] if kept else layout.need(root, *names)
    if not Path(config.images).is_dir():
        raise layout.refuse(f"setting images: there is no folder '{config.images}'")
    return Path(config.images)


def present(photos: Sequence[Photo], folder: Path, layout: Layout, absent: str = "refuse") -> list[Photo]:
    """The photos whose files are in `folder`.

    Raises `VlpipeError` where one is not, unless `absent` says that such are left out or kept; and, unless they
    are kept, where none is.
    """
    if absent == "keep":
        return list(photos)
    there: dict[Path, set[str]] = {}
    missing: list[Photo] = []
    kept: list[Photo] = []
    for photo in photos:
        place = (folder / photo.path).parent
        if place not in there:
            there[place] = {path.name for path in place.iterdir()} if place.is_dir() else set()
        (kept if (folder / photo.path).name in there[place] else missing).append(photo)
    if missing and (absent == "refuse" or not kept):
        names = ", ".join(photo.path for photo in missing[:SHOWN])
        raise VlpipeError(
            f"{len(missing)} of {len(photos)} photos are not in '{folder}': {names}"
            + (", ..." if len(missing) > SHOWN else "")
            + f"; unpack the photo archive whole ({layout.source}), or --set 'absent=\"leave_out\"' for "
            "the rows of those that are there, 'absent=\"keep\"' for all texts without their photos"
        )
    return kept
