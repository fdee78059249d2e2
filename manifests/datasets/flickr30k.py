"""Flickr30k: 31,783 photos with five captions each.

Young, Lai, Hodosh and Hockenmaier, "From image descriptions to visual denotations", TACL 2 (2014).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Literal

from vlpipe.manifests.caption_files import karpathy_photos, split_files, token_photos
from vlpipe.manifests.captioned import Captioned, Photo, PhotoConfig, photo_folder, present
from vlpipe.manifests.layouts import Layout
from vlpipe.manifests.readers import read_records

PHOTOS = ("flickr30k-images", "flickr30k_images", "images")
FILES = {
    "karpathy": "dataset_flickr30k.json",
    "csv": "flickr_annotations_30k.csv",
    "token": "results_20130124.token",
}
SPLITS = {"train.txt": "train", "val.txt": "val", "test.txt": "test"}
LAYOUT = Layout(
    "Flickr30k",
    f"{PHOTOS[0]}/*.jpg with {FILES['karpathy']} (keys images, filename, split, sentences, raw) or {FILES['csv']} "
    f"(columns raw, split, filename) or {FILES['token']} (lines NAME.jpg#N, tab, caption) beside it",
    "https://shannon.cs.illinois.edu/DenotationGraph/ (splits: "
    "https://cs.stanford.edu/people/karpathy/deepimagesent/)",
)


class Flickr30kConfig(PhotoConfig):
    """Which file the captions are from."""

    captions: Literal["karpathy", "csv", "token"] | None = None  # default: the first of these that is there


class Flickr30k(Captioned):
    """Karpathy's splits (JSON, or the CSV that the Hugging Face copy nlphuji/flickr30k has of it) or the original
    token file.

    Karpathy: 31,014 photos (train 29,000, val 1,014, test 1,000), 155,070 captions. The token file has 31,783
    photos, 158,915 captions, which are tokenised ("... in the yard ."), and no splits: these are of train.txt,
    val.txt and test.txt (photo numbers, as Flickr30k Entities publishes them) where all three are there, else
    null. Ids are file names, and `NAME.jpg#0` to `#4`.
    """

    Config = Flickr30kConfig
    source: ClassVar[str] = LAYOUT.source
    licence: ClassVar[str] = (
        "photos: their owners' terms (Flickr); captions: non-commercial research and education"
    )

    def __init__(self, config: Flickr30kConfig, root: Path | None, folder: Path) -> None:
        root = LAYOUT.root(root)
        names = [FILES[config.captions]] if config.captions else list(FILES.values())
        captions = LAYOUT.need(root, *names)
        self.folder = photo_folder(LAYOUT, root, PHOTOS, config)
        self.tokens = captions.name == FILES["token"]
        self.photos = present(_photos(captions), self.folder, LAYOUT, config.absent)

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """The counts of Karpathy's splits, or nothing: the token file has no splits of its own."""
        if self.tokens:
            return {}
        return {
            "images": {"train": 29000, "val": 1014, "test": 1000},
            "texts": {"train": 145000, "val": 5070, "test": 5000},
        }


def _photos(captions: Path) -> list[Photo]:
    if captions.name == FILES["karpathy"]:
        return list(karpathy_photos(captions, LAYOUT))
    if captions.name == FILES["csv"]:
        return list(_table(captions))
    folder = captions.parent
    there = all((folder / name).is_file() for name in SPLITS)
    photos = token_photos(captions, None, LAYOUT)
    splits = split_files(folder, SPLITS, LAYOUT, ".jpg") if there else {}
    return [Photo(photo.id, photo.path, splits.get(photo.id), photo.captions) for photo in photos]


def _table(path: Path) -> Iterator[Photo]:
    for number, record in read_records(path):
        where = f"'{path}' line {number}"
        name = LAYOUT.part(record, "filename", str, where)
        try:
            texts = json.loads(LAYOUT.part(record, "raw", str, where))
        except (ValueError, RecursionError):
            texts = None
        if not isinstance(texts, list):
            raise LAYOUT.refuse(f"{where}: raw is no JSON list of captions")
        captions = {f"{name}#{place}": text for place, text in enumerate(texts)}
        yield Photo(name, name, LAYOUT.part(record, "split", str, where), captions)
