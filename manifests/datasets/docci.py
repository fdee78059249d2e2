"""DOCCI: 15,000 photos, each with one long description.

Onoe et al., "DOCCI: Descriptions of Connected and Contrasting Images", ECCV 2024.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from vlpipe.manifests.captioned import Captioned, DescribedConfig, Photo, photo_folder, present
from vlpipe.manifests.layouts import Layout

COUNTS = {"train": 9647, "test": 5000, "qual_dev": 100, "qual_test": 100}
LAYOUT = Layout(
    "DOCCI",
    "docci_descriptions.jsonlines (keys example_id, split, image_file, description) with images/*.jpg",
    "https://google.github.io/docci/",
)


class DocciConfig(DescribedConfig):
    """Nothing beside the photos' folder and sentences."""


class Docci(Captioned):
    """14,847 photos with descriptions: train 9,647, test 5,000, qual_dev 100, qual_test 100.

    Ids are the publisher's: `image_file` for photos (`train_00000.jpg`), `example_id` for descriptions.
    """

    Config = DocciConfig
    source: ClassVar[str] = LAYOUT.source
    licence: ClassVar[str] = "CC BY 4.0"

    def __init__(self, config: DocciConfig, root: Path | None, folder: Path) -> None:
        root = LAYOUT.root(root)
        self.sentences = config.sentences
        described = _photos(LAYOUT.need(root, "docci_descriptions.jsonlines"))
        photos = [photo.in_sentences() if config.sentences else photo for photo in described]
        self.folder = photo_folder(LAYOUT, root, ("images",), config)
        self.photos = present(photos, self.folder, LAYOUT, config.absent)

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """The counts above."""
        return {"images": COUNTS} if self.sentences else {"images": COUNTS, "texts": COUNTS}


def _photos(path: Path) -> Iterator[Photo]:
    for number, record in LAYOUT.json_lines(path):
        where = f"'{path}' line {number}"
        name, split, text_id, text = (
            LAYOUT.part(record, key, str, where) for key in ("image_file", "split", "example_id", "description")
        )
        yield Photo(name, name, split, {text_id: text})
