"""Winoground: 400 groups of two images and two captions of the same words in another order.

Thrush et al., "Winoground: Probing Vision and Language Models for Visio-Linguistic Compositionality", CVPR 2022.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from vlpipe.manifests.captioned import Captioned, Photo, PhotoConfig, photo_folder, present
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.layouts import Layout

TAGS = ("tag", "secondary_tag", "collapsed_tag", "num_main_preds")
LAYOUT = Layout(
    "Winoground",
    "data/examples.jsonl (keys id, image_0, image_1, caption_0, caption_1, tag, ...) and data/images/*.png "
    "(unpack images.zip there)",
    "https://huggingface.co/datasets/facebook/winoground",
)


class WinogroundConfig(PhotoConfig):
    """Nothing beside the photos' folder."""


class Winoground(Captioned):
    """800 images, 800 captions, all of split test. Caption 0 belongs to image 0, caption 1 to image 1.

    `group_id` of a text, and the attribute `group` of an image, is the publisher's id. Image ids are the
    publisher's too (`ex_0_img_0`), text ids formed like them (`ex_0_caption_0`); its tags are attributes of texts.
    """

    Config = WinogroundConfig
    source: ClassVar[str] = LAYOUT.source
    licence: ClassVar[str] = "Getty Images' and the publisher's research terms"

    def __init__(self, config: WinogroundConfig, root: Path | None, folder: Path) -> None:
        root = LAYOUT.root(root)
        path = LAYOUT.need(root, "data/examples.jsonl", "examples.jsonl")
        photos = [photo for number, record in LAYOUT.json_lines(path) for photo in _group(path, number, record)]
        self.folder = photo_folder(LAYOUT, path.parent, ("images",), config)
        self.photos = present(photos, self.folder, LAYOUT, config.absent)

    def images(self) -> Iterator[Row]:
        """Two rows a group."""
        for photo in self.photos:
            yield {**photo.image(), "attributes": {"group": photo.attributes["group"]}}

    def texts(self) -> Iterator[Row]:
        """One caption an image."""
        for photo in self.photos:
            tags = {name: value for name, value in photo.attributes.items() if name != "group"}
            for row in photo.texts():
                yield {**row, "group_id": photo.attributes["group"], "attributes": tags}

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """The counts above."""
        return {"images": {"test": 800}, "texts": {"test": 800}}


def _group(path: Path, number: int, record: Mapping[str, object]) -> Iterator[Photo]:
    where = f"'{path}' line {number}"
    group = LAYOUT.part(record, "id", str, where)  # JSON lines are read with numbers as their digits
    tags = {name: str(record[name]) for name in TAGS if record.get(name)}
    for place in (0, 1):
        name = LAYOUT.part(record, f"image_{place}", str, where)
        caption = {f"ex_{group}_caption_{place}": LAYOUT.part(record, f"caption_{place}", str, where)}
        yield Photo(name, f"{name.removesuffix('.png')}.png", "test", caption, {"group": group} | tags)
