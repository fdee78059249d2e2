"""ImageInWords: long descriptions of photos by people and by a model, in five parts.

Garg et al., "ImageInWords: Unlocking Hyper-Detailed Image Descriptions", EMNLP 2024.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.captioned import Captioned, DescribedConfig, Photo, photo_folder, present
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.layouts import Layout
from vlpipe.manifests.upright import picture_frame

COUNTS = {"IIW-400": 400, "DOCCI_Test": 100, "DCI_Test": 112, "CM_3600": 1000, "LocNar_Eval": 1000}
PEOPLE = ("IIW-400", "DOCCI_Test", "DCI_Test")  # 612 photos, as FLAIR and TEVI retrieve among
SCALE = 999  # the largest normalised coordinate
LAYOUT = Layout(
    "ImageInWords",
    f"datasets/PART/data.jsonl (PART one of {', '.join(COUNTS)}; keys image/key or image, and descriptions by "
    "author: IIW, IIW-P5B, DOCCI), and the photos, which other sets publish, in images/ or --set images='\"DIR\"'",
    "https://github.com/google/imageinwords (photos: DOCCI, DCI, Crossmodal-3600, Open Images)",
)


class IiwConfig(DescribedConfig):
    """Which part, or the three that people described, and whose descriptions."""

    subset: Literal["IIW-400", "DOCCI_Test", "DCI_Test", "CM_3600", "LocNar_Eval", "people"] = "IIW-400"
    authors: list[str] = Field(default_factory=lambda: ["IIW"], min_length=1)  # keys of the file


class Iiw(Captioned):
    """Photos of one part, all of split test: IIW-400 400, DOCCI_Test 100, DCI_Test 112 with people's descriptions
    (author IIW); CM_3600 and LocNar_Eval 1,000 each with a model's (IIW-P5B) only.

    `people` are the first three together. Ids: the publisher's key of the photo, and `KEY#AUTHOR`; the author is
    an attribute too. IIW-400's objects are regions of photos, `KEY/0`, ...: published as y, x, y, x of 0 to 999,
    the two y in either order (the README says ascending, the file has them descending), here pixels of the
    upright photo.
    """

    Config = IiwConfig
    source: ClassVar[str] = LAYOUT.source
    licence: ClassVar[str] = "descriptions: CC BY 4.0; photos: their sets' terms"

    def __init__(self, config: IiwConfig, root: Path | None, folder: Path) -> None:
        root = LAYOUT.root(root)
        self.config = config
        self.parts = PEOPLE if config.subset == "people" else (config.subset,)
        self.objects: dict[str, tuple[Path, list[Any]]] = {}  # with the file that they are from
        photos: list[Photo] = []
        for part in self.parts:
            names = (part, part.upper())  # the repository has DCI_TEST too
            path = LAYOUT.need(root, *[f"{w}{name}/data.jsonl" for w in ("datasets/", "") for name in names])
            found = list(self._photos(path))
            if not any(photo.captions for photo in found):
                raise VlpipeError(f"'{path}' has no text by {' or '.join(config.authors)}; set other authors")
            photos += [photo.in_sentences() if config.sentences else photo for photo in found]
        self.folder = photo_folder(LAYOUT, root, ("images",), config)
        self.photos = present(photos, self.folder, LAYOUT, config.absent)

    def texts(self) -> Iterator[Row]:
        """One row a description."""
        for photo in self.photos:
            for text_id, text in photo.captions.items():
                author = text_id.removeprefix(f"{photo.id}#").partition(".")[0]  # before a sentence's number
                yield photo.text(text_id, text, author=author)

    def regions(self) -> Iterator[Row]:
        """One row an object."""
        for photo in self.photos:
            path, objects = self.objects[photo.id]
            width, height = picture_frame(self.folder / photo.path).upright if objects else (0, 0)
            for place, thing in enumerate(objects):
                where = f"'{path}' {photo.id} objects[{place}]"
                x0, y0, x1, y1 = _corners(LAYOUT.part(thing, "normalized_coords", list, where), where)
                yield {
                    "region_id": f"{photo.id}/{place}",
                    "image_id": photo.id,
                    "label": LAYOUT.part(thing, "label", str, where),
                    "boxes": [[x0 * width, y0 * height, x1 * width, y1 * height]],
                    "attributes": {"description": LAYOUT.part(thing, "description", str, where)},
                }

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """The counts above."""
        return {"images": {"test": sum(COUNTS[part] for part in self.parts)}}

    def _photos(self, path: Path) -> Iterator[Photo]:
        for number, record in LAYOUT.json_lines(path):
            where = f"'{path}' line {number}"
            key = LAYOUT.part(record, "image/key" if "image/key" in record else "image", str, where)
            own = {name: record[name] for name in self.config.authors if record.get(name)}
            self.objects[key] = path, record.get("objects") or []
            yield Photo(
                key,
                key if "." in key else f"{key}.jpg",
                "test",
                {f"{key}#{name}": text for name, text in own.items()},
            )


def _corners(values: list[Any], where: str) -> tuple[float, float, float, float]:
    """Shares of width and height: x0, y0, x1, y1."""
    try:
        y0, x0, y1, x1 = (float(value) / SCALE for value in values)
    except (TypeError, ValueError):
        raise LAYOUT.refuse(f"{where} has normalized_coords {values}; four numbers were looked for") from None
    return min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)
