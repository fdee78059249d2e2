"""COCO's instances as object queries: what a caption names and a box shows.

The construction of ProtoLIP's appendix G: categories are matched in captions by a fixed list of names; a query is
kept where the photo has a box of its category, and all boxes of it are the target.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from vlpipe.manifests.captioned import Captioned, Photo, PhotoConfig, present
from vlpipe.manifests.coco_json import CocoImage, add_instances, read_captions
from vlpipe.manifests.coco_names import names_of
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.layouts import Layout
from vlpipe.manifests.mentions import Mention, Mentions
from vlpipe.manifests.upright import picture_frame, upright_boxes

LAYOUT = Layout(
    "COCO with instances",
    "annotations/captions_SPLIT.json and annotations/instances_SPLIT.json (keys images, annotations, bbox, "
    "categories), with SPLIT/*.jpg beside annotations/; SPLIT is val2017 by default",
    "https://cocodataset.org/#download",
)


class CocoObjectsConfig(PhotoConfig):
    """Which part of COCO, and what a query's text is."""

    split: Literal["val2017", "train2017", "val2014", "train2014"] = "val2017"
    query: Literal["category", "mention"] = "category"  # the category's name, or the caption's words for it
    crowds: bool = False  # whether boxes around crowds count


@dataclass(frozen=True)
class Query:
    """A category that a caption of the photo names first in `caption`, with its boxes."""

    caption: str
    mention: Mention
    boxes: list[list[float]]


class CocoObjects(Captioned):
    """Photos with a query; their captions; and a text of role phrase and a region for each category that one of
    the captions names and a box shows.

    ProtoLIP's own manifest (681 queries over 557 photos of val) is not published, nor are its names for
    categories: this one is built by the same rule from the whole split. Ids: file names, COCO's caption numbers,
    `FILE/CATEGORY` for queries and regions. A query's `source_text_id` is the first caption that names it.
    """

    Config = CocoObjectsConfig
    source: ClassVar[str] = LAYOUT.source
    licence: ClassVar[str] = "photos: their owners' terms (Flickr); annotations: CC BY 4.0"

    def __init__(self, config: CocoObjectsConfig, root: Path | None, folder: Path) -> None:
        root = LAYOUT.root(root)
        self.config = config
        captions, instances = (
            LAYOUT.need(root, f"annotations/{name}_{config.split}.json", f"{name}_{config.split}.json")
            for name in ("captions", "instances")
        )
        images = read_captions(captions, LAYOUT)
        mentions = Mentions(names_of(add_instances(images, instances, LAYOUT, crowds=config.crowds)))
        queries = {image.name: list(_queries(image, mentions)) for image in images.values()}
        self.queries = {name: found for name, found in queries.items() if found}
        self.sizes = {image.name: image.size for image in images.values()}
        self.folder = Path(config.images) if config.images else LAYOUT.need(root, config.split)
        named = [image for image in images.values() if image.name in self.queries]
        split = config.split.rstrip("0123456789")
        photos = [Photo(image.name, image.name, split, image.captions) for image in named]
        self.photos = present(photos, self.folder, LAYOUT, config.absent)

    def texts(self) -> Iterator[Row]:
        """A photo's captions, then its queries."""
        for photo in self.photos:
            yield from photo.texts()
            for query in self.queries[photo.id]:
                thing, words = query.mention.thing, query.mention.words
                text = thing if self.config.query == "category" else words.lower()
                yield photo.text(
                    f"{photo.id}/{thing}", text, "phrase", source=query.caption, category=thing, mention=words
                )

    def regions(self) -> Iterator[Row]:
        """One row a query."""
        for photo in self.photos:
            frame = picture_frame(self.folder / photo.path)
            for query in self.queries[photo.id]:
                name = f"{photo.id}/{query.mention.thing}"
                yield {
                    "region_id": name,
                    "text_id": name,
                    "image_id": photo.id,
                    "label": query.mention.thing,
                    "boxes": upright_boxes(query.boxes, self.sizes[photo.id], frame, photo.path),
                }


def _queries(image: CocoImage, mentions: Mentions) -> Iterator[Query]:
    seen: set[str] = set()
    for caption, text in image.captions.items():
        for mention in mentions.find(text):
            if mention.thing in image.boxes and mention.thing not in seen:
                seen.add(mention.thing)
                yield Query(caption, mention, image.boxes[mention.thing])
