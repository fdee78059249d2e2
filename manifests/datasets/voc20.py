"""VOC20: PASCAL VOC 2012's segmentation, its 20 classes without background.

Everingham, Van Gool, Williams, Winn and Zisserman, "The PASCAL Visual Object Classes Challenge", IJCV 88 (2010).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from vlpipe.manifests.classes import ClassConfig, Classes
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.label_maps import class_regions
from vlpipe.manifests.layouts import Layout

LABELS = (  # numbers 1 to 20 in the maps
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
WORDS = {"diningtable": "dining table", "pottedplant": "potted plant", "tvmonitor": "tv monitor"}
IGNORED = (0, 255)  # background; void, the contours
LISTS = "ImageSets/Segmentation"
LAYOUT = Layout(
    "VOC 2012",
    f"VOCdevkit/VOC2012/ with JPEGImages/*.jpg, SegmentationClass/*.png and {LISTS}/train.txt, val.txt",
    "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/",
)


class Voc20Config(ClassConfig):
    """Prompts and superclasses of the 20 classes."""


class Voc20:
    """The pictures that the segmentation lists name: 1,464 train and 1,449 val as published.

    A picture has no label of its own; its regions have: one a class, the mask of all its pixels. Background and
    void pixels are in no region. Ids are the publisher's (`2007_000032`).
    """

    Config = Voc20Config
    source: ClassVar[str] = LAYOUT.source
    licence: ClassVar[str] = "images: their owners' terms (Flickr)"

    def __init__(self, config: Voc20Config, root: Path | None, folder: Path) -> None:
        places = ("VOCdevkit/VOC2012/", "VOC2012/", "")
        lists = LAYOUT.need(LAYOUT.root(root), *(f"{place}{LISTS}" for place in places))
        self.root = lists.parents[1]
        self.ids = {split: LAYOUT.entries(lists / f"{split}.txt") for split in ("train", "val")}
        for name in ("JPEGImages", "SegmentationClass"):
            LAYOUT.need(self.root, name)
        self.classes = Classes.configured(config, {label: WORDS.get(label, label) for label in LABELS})

    def image_root(self) -> Path:
        """The folder of the year."""
        return self.root

    def images(self) -> Iterator[Row]:
        """One row a picture, in the lists' order."""
        for split, ids in self.ids.items():
            for image_id in ids:
                yield {"image_id": image_id, "path": f"JPEGImages/{image_id}.jpg", "split": split}

    def texts(self) -> Iterator[Row]:
        """The classes' prompts."""
        return self.classes.prompts()

    def regions(self) -> Iterator[Row]:
        """One row a class and picture."""
        labels = dict(enumerate(LABELS, start=1))
        for ids in self.ids.values():
            for image_id in ids:
                drawn = self.root / f"SegmentationClass/{image_id}.png"
                picture = self.root / f"JPEGImages/{image_id}.jpg"
                yield from class_regions(drawn, picture, image_id, labels, IGNORED)

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """Pictures by split."""
        return {"images": {"train": 1_464, "val": 1_449}}
