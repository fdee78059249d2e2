"""COCO captions: 123,287 photos with five captions each, or a few more.

Chen et al., "Microsoft COCO Captions: Data Collection and Evaluation Server", 2015.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from vlpipe.manifests.caption_files import karpathy_photos
from vlpipe.manifests.captioned import Captioned, Photo, PhotoConfig, present
from vlpipe.manifests.coco_json import read_captions
from vlpipe.manifests.layouts import Layout

KARPATHY = "dataset_coco.json"
SPLITS = ("train", "val")
LAYOUT = Layout(
    "COCO",
    f"train2014/ and val2014/ with {KARPATHY} (keys images, filepath, filename, split, sentences, raw, sentid) "
    "beside them, or annotations/captions_{train,val}2017.json or ...2014.json (keys images, file_name, "
    "annotations, caption) with train2017/ and val2017/, or those of 2014",
    "https://cocodataset.org/#download (splits: https://cs.stanford.edu/people/karpathy/deepimagesent/)",
)
IMAGES = {
    "karpathy": {"train": 113287, "val": 5000, "test": 5000},
    "2014": {"train": 82783, "val": 40504},
    "2017": {"train": 118287, "val": 5000},
}
TEXTS = {
    "karpathy": {"train": 566747, "val": 25010, "test": 25010},
    "2014": {"train": 414113, "val": 202654},
    "2017": {"train": 591753, "val": 25014},
}


class CocoConfig(PhotoConfig):
    """Which captions and splits."""

    captions: Literal["karpathy", "2017", "2014"] | None = None  # default: the first of these that is there
    restval: Literal["train", "restval"] = "train"  # split of Karpathy's 30,504 photos of that name


class Coco(Captioned):
    """Karpathy's splits (train 113,287 of which restval 30,504, val 5,000, test 5,000), or COCO's own of 2017
    (train 118,287, val 5,000) or 2014 (train 82,783, val 40,504), of which one may be missing.

    Ids are the publisher's: file names (`COCO_val2014_000000391895.jpg`, in 2017 `000000397133.jpg`), and the
    numbers of captions, which all the files share.
    """

    Config = CocoConfig
    source: ClassVar[str] = LAYOUT.source
    licence: ClassVar[str] = "photos: their owners' terms (Flickr); captions: CC BY 4.0"

    def __init__(self, config: CocoConfig, root: Path | None, folder: Path) -> None:
        root = LAYOUT.root(root)
        self.config = config
        self.captions = config.captions or _found(root)
        photos = list(_karpathy(root, config) if self.captions == "karpathy" else _own(root, self.captions))
        self.folder = Path(config.images) if config.images else root
        self.photos = present(photos, self.folder, LAYOUT, config.absent)

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """The counts of the splits that were asked for."""
        if self.captions == "karpathy" and self.config.restval == "restval":
            return {
                "images": IMAGES["karpathy"] | {"train": 82783, "restval": 30504},
                "texts": TEXTS["karpathy"] | {"train": 414113, "restval": 152634},
            }
        return {"images": IMAGES[self.captions], "texts": TEXTS[self.captions]}


def _files(root: Path, year: str) -> dict[str, Path]:
    """Caption files by split, as far as they are there."""
    names = {split: f"captions_{split}{year}.json" for split in SPLITS}
    found = {split: LAYOUT.find(root, f"annotations/{name}", name) for split, name in names.items()}
    return {split: path for split, path in found.items() if path}


def _found(root: Path) -> str:
    if LAYOUT.find(root, KARPATHY):
        return "karpathy"
    year = next((year for year in ("2017", "2014") if _files(root, year)), None)
    if year is None:
        raise LAYOUT.refuse(f"'{root}' is not COCO: it has no {KARPATHY} and no annotations/captions_*.json")
    return year


def _karpathy(root: Path, config: CocoConfig) -> Iterator[Photo]:
    for photo in karpathy_photos(LAYOUT.need(root, KARPATHY), LAYOUT):
        yield replace(photo, split=config.restval) if photo.split == "restval" else photo


def _own(root: Path, year: str) -> Iterator[Photo]:
    files = _files(root, year)
    if not files:
        raise LAYOUT.refuse(
            f"'{root}' has no annotations/captions_train{year}.json and no captions_val{year}.json"
        )
    for split, path in files.items():
        for image in read_captions(path, LAYOUT).values():
            yield Photo(image.name, f"{split}{year}/{image.name}", split, image.captions)
