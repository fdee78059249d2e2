"""ARO's two sets on Visual Genome: a part of a photo, a caption of it, and one with two words exchanged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlpipe.manifests.contracts import Row
from vlpipe.manifests.layouts import Layout
from vlpipe.manifests.pictures import Box, crop_path, write_crop
from vlpipe.manifests.upright import picture_frame, upright_boxes

SPLIT = "test"
SIDES = ("bbox_x", "bbox_y", "bbox_w", "bbox_h")


@dataclass(frozen=True)
class Case:
    """One test case: the photo's path, the part in stored pixels, both captions, what was exchanged."""

    id: str
    path: str
    box: Box
    true: str
    false: str
    about: dict[str, str]


@dataclass(frozen=True)
class Cases:
    """Their rows: with `crop` an image is a part, written into `folder`; without, a photo of `photos`."""

    cases: Sequence[Case]
    photos: Path
    folder: Path
    crop: bool

    def image_root(self) -> Path:
        """The manifest's folder, or the photos'."""
        return self.folder if self.crop else self.photos

    def images(self) -> Iterator[Row]:
        """Every part once, or every photo once."""
        seen: set[str] = set()
        for case in self.cases:
            name = self._image(case)
            if name in seen:
                continue
            seen.add(name)
            path = crop_path(case.path, case.box) if self.crop else case.path
            if self.crop:
                write_crop(self.photos / case.path, case.box, self.folder / path)
            yield {"image_id": name, "path": path, "split": SPLIT}

    def texts(self) -> Iterator[Row]:
        """The true caption and its hard negative, case by case."""
        for case in self.cases:
            shared = {"image_id": self._image(case), "split": SPLIT, "attributes": case.about}
            yield {"text_id": case.id, "text": case.true, "role": "caption", **shared}
            negative = {"text_id": f"{case.id}#negative", "text": case.false, "role": "hard_negative"}
            yield {**negative, "source_text_id": case.id, **shared}

    def regions(self) -> Iterator[Row]:
        """Of whole photos: the part, once for each of a case's texts."""
        for case in () if self.crop else self.cases:
            x, y, width, height = case.box
            frame = picture_frame(self.photos / case.path)
            drawn = (frame.width, frame.height)
            boxes = upright_boxes([(x, y, x + width, y + height)], drawn, frame, case.path)
            for text_id in (case.id, f"{case.id}#negative"):
                yield {"region_id": text_id, "text_id": text_id, "image_id": case.path, "boxes": boxes}

    def _image(self, case: Case) -> str:
        return f"{case.path}@{','.join(str(side) for side in case.box)}" if self.crop else case.path


def read_cases(path: Path, subset: str, layout: Layout) -> list[Case]:
    """All cases of a file. Raises `VlpipeError` that names the entry where a key is not there."""
    data: Any = layout.json(path)
    if not isinstance(data, list):
        raise layout.refuse(f"'{path}' is no list of test cases")
    return [_case(f"{subset}/{place}", entry, f"'{path}' [{place}]", layout) for place, entry in enumerate(data)]


def _case(name: str, entry: Any, where: str, layout: Layout) -> Case:
    x, y, width, height = (round(layout.part(entry, side, (int, float), where)) for side in SIDES)
    about = {"relation": str(entry["relation_name"])} if "relation_name" in entry else {}
    attributes = entry.get("attributes")
    if isinstance(attributes, list) and len(attributes) > 1:
        about |= {"attribute_1": str(attributes[0]), "attribute_2": str(attributes[1])}
    image, true, false = (
        layout.part(entry, key, str, where) for key in ("image_path", "true_caption", "false_caption")
    )
    return Case(name, image, (x, y, width, height), true, false, about)
