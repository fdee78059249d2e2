"""Flickr8k: 8,000 photos with five captions each.

Hodosh, Young and Hockenmaier, "Framing Image Description as a Ranking Task", JAIR 47 (2013).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.caption_files import karpathy_photos, split_files, token_photos
from vlpipe.manifests.captioned import Captioned, Photo, PhotoConfig, photo_folder, present
from vlpipe.manifests.layouts import Layout

PHOTOS = ("Flicker8k_Dataset", "Flickr8k_Dataset")  # the archive spells it the first way
TOKENS = "Flickr8k.token.txt"
SPLITS = {
    "Flickr_8k.trainImages.txt": "train",
    "Flickr_8k.devImages.txt": "val",
    "Flickr_8k.testImages.txt": "test",
}
LISTED = "captions.jsonl"
KARPATHY = "dataset_flickr8k.json"
LAYOUT = Layout(
    "Flickr8k",
    f"{PHOTOS[0]}/*.jpg with {TOKENS} and {', '.join(SPLITS)} beside it (or in Flickr8k_text/), or with "
    f"{KARPATHY}, or {LISTED} (keys image, split, captions) with images/",
    "https://hockenmaier.cs.illinois.edu/8k-pictures.html",
)


class Flickr8kConfig(PhotoConfig):
    """Nothing beside the photos' folder."""


class Flickr8k(Captioned):
    """The publisher's layout, Karpathy's JSON, or `captions.jsonl` with `images/`: the first that is there.

    Of the published 8,091 photos the 8,000 that the split files name are rows (train 6,000, val 1,000, test 1,000;
    40,000 captions), in the order of the token file; the other 91, and the five captions there of
    `2258277193_586949ec62.jpg.1`, which is no photo, are left out. Ids are file names, and `NAME.jpg#0` to `#4`.
    """

    Config = Flickr8kConfig
    source: ClassVar[str] = LAYOUT.source
    licence: ClassVar[str] = (
        "photos: their owners' terms (Flickr); captions: non-commercial research and education"
    )

    def __init__(self, config: Flickr8kConfig, root: Path | None, folder: Path) -> None:
        root = LAYOUT.root(root)
        captions = LAYOUT.need(root, TOKENS, f"Flickr8k_text/{TOKENS}", LISTED, KARPATHY)
        names = ("images",) if captions.name == LISTED else (*PHOTOS, "images")
        self.folder = photo_folder(LAYOUT, root, names, config)
        self.photos = present(_photos(captions), self.folder, LAYOUT, config.absent)

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """The counts above."""
        return {
            "images": {"train": 6000, "val": 1000, "test": 1000},
            "texts": {"train": 30000, "val": 5000, "test": 5000},
        }


def _photos(captions: Path) -> list[Photo]:
    if captions.name == LISTED:
        return list(_listed(captions))
    if captions.name == KARPATHY:
        return list(karpathy_photos(captions, LAYOUT))
    return token_photos(captions, split_files(captions.parent, SPLITS, LAYOUT), LAYOUT)


def _listed(path: Path) -> Iterator[Photo]:
    seen: set[str] = set()
    for number, record in LAYOUT.json_lines(path):
        where = f"'{path}' line {number}"
        name = LAYOUT.part(record, "image", str, where)
        texts = LAYOUT.part(record, "captions", list, where)
        if name in seen:
            raise VlpipeError(f"{where}: image '{name}' stands twice; expected image (once), split and captions")
        seen.add(name)
        captions = {f"{name}#{place}": text for place, text in enumerate(texts)}
        yield Photo(name, name, LAYOUT.part(record, "split", str, where), captions)
