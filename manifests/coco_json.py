"""COCO's annotation files, captions_SPLIT.json and instances_SPLIT.json.

Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014. One JSON object: `images` (id, file_name,
width, height), `annotations` (id, image_id, and caption, or bbox as x, y, width, height with category_id and
iscrowd), and of instances `categories` (id, name, supercategory).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlpipe.manifests.layouts import Layout


@dataclass
class CocoImage:
    """One photo: captions by annotation id; boxes `x0, y0, x1, y1` by category name, in the file's order.

    `size` is the width and height in pixels that the boxes mean.
    """

    name: str
    size: tuple[int, int]
    captions: dict[str, str] = field(default_factory=dict)
    boxes: dict[str, list[list[float]]] = field(default_factory=dict)


def read_captions(path: Path, layout: Layout) -> dict[int, CocoImage]:
    """Photos by their number, in the file's order, with their captions to the letter.

    Raises `VlpipeError` that names the entry: a key that is not there, a photo that is not in the file.
    """
    data = layout.json(path)
    images = _images(path, data, layout)
    for where, annotation, image in _annotations(path, data, images, layout):
        number = str(layout.part(annotation, "id", int, where))
        if number in image.captions:
            raise layout.refuse(f"{where} has id {number}, which stands there twice")
        image.captions[number] = layout.part(annotation, "caption", str, where)
    return images


def add_instances(images: dict[int, CocoImage], path: Path, layout: Layout, *, crowds: bool) -> list[str]:
    """Put the boxes of instances to their photos, those of crowds only where asked; names of all categories.

    Photos that `images` does not have are passed over. Raises as `read_captions` does.
    """
    data = layout.json(path)
    names = {}
    for number, category in enumerate(layout.part(data, "categories", list, f"'{path}'")):
        where = f"'{path}' categories[{number}]"
        names[layout.part(category, "id", int, where)] = layout.part(category, "name", str, where)
    known = _images(path, data, layout)
    for where, annotation, _ in _annotations(path, data, known, layout):
        category = layout.part(annotation, "category_id", int, where)
        box = _corners(layout.part(annotation, "bbox", list, where), where, layout)
        if category not in names:
            raise layout.refuse(f"{where} has category_id {category}, which is none of the categories")
        image = images.get(annotation["image_id"])
        if image is not None and (crowds or not annotation.get("iscrowd")):
            image.boxes.setdefault(names[category], []).append(box)
    return list(names.values())


def _corners(box: Sequence[Any], where: str, layout: Layout) -> list[float]:
    if len(box) != 4 or not all(isinstance(value, int | float) for value in box):
        raise layout.refuse(f"{where} has bbox {box}; four numbers x, y, width, height were looked for")
    x, y, width, height = box
    return [x, y, x + width, y + height]


def _images(path: Path, data: Any, layout: Layout) -> dict[int, CocoImage]:
    images: dict[int, CocoImage] = {}
    for number, image in enumerate(layout.part(data, "images", list, f"'{path}'")):
        where = f"'{path}' images[{number}]"
        size = layout.part(image, "width", int, where), layout.part(image, "height", int, where)
        name = layout.part(image, "id", int, where)
        if name in images:
            raise layout.refuse(f"{where} has id {name}, which stands there twice")
        images[name] = CocoImage(layout.part(image, "file_name", str, where), size)
    return images


def _annotations(
    path: Path, data: Any, images: dict[int, CocoImage], layout: Layout
) -> list[tuple[str, Any, CocoImage]]:
    found = []
    for number, annotation in enumerate(layout.part(data, "annotations", list, f"'{path}'")):
        where = f"'{path}' annotations[{number}]"
        image_id = layout.part(annotation, "image_id", int, where)
        if image_id not in images:
            raise layout.refuse(f"{where} has image_id {image_id}, which is none of the images")
        found.append((where, annotation, images[image_id]))
    return found
