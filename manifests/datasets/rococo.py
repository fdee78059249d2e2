"""RoCOCO: Karpathy's COCO test split with captions in which one word was exchanged, in four sets.

Park et al., "RoCOCO: Robustness Benchmark of MS-COCO to Stress-test Image-Text Matching Models", 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.caption_files import listed_photos
from vlpipe.manifests.captioned import Captioned, Photo, PhotoConfig, present
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.layouts import Layout

Kind = Literal["same_concept", "diff_concept", "rand_voca", "danger"]
KINDS: tuple[Kind, ...] = ("same_concept", "diff_concept", "rand_voca", "danger")
PERTURBED = 5  # captions of a photo that have a perturbed form: its first ones
LAYOUT = Layout(
    "RoCOCO",
    f"{', '.join(f'{name}.json' for name in KINDS)} (lists of objects with image and caption: all captions, then "
    f"the perturbed forms of the first {PERTURBED}), in annotations/ or not, and COCO's val2014/ beside them, or "
    "in --set images='\"DIR\"'",
    "https://github.com/pseulki/rococo (photos: https://cocodataset.org/#download)",
)


class RococoConfig(PhotoConfig):
    """Which of the four sets."""

    kinds: list[Kind] = Field(default_factory=lambda: list(KINDS), min_length=1)


class Rococo(Captioned):
    """5,000 photos of COCO val2014, 25,010 captions, and 25,000 perturbed ones a set, all of split test.

    A perturbed text has the role `perturbed:SET` and the caption that it was made of as `source_text_id`. Ids are
    paths (`val2014/COCO_val2014_000000391895.jpg`), and `PATH#0`, ..., `PATH#0#danger`. Kept as published: three
    captions of `danger` equal their source.
    """

    Config = RococoConfig
    source: ClassVar[str] = LAYOUT.source
    licence: ClassVar[str] = "texts: MIT; photos: their owners' terms (Flickr)"

    def __init__(self, config: RococoConfig, root: Path | None, folder: Path) -> None:
        root = LAYOUT.root(root)
        self.kinds = list(dict.fromkeys(config.kinds))
        self.perturbed: dict[str, dict[str, list[str]]] = {}
        photos: list[Photo] = []
        for kind in self.kinds:
            path = LAYOUT.need(root, f"annotations/{kind}.json", f"{kind}.json")
            found, self.perturbed[kind] = _halves(path)
            if photos and found != photos:
                other = next((a.id for a, b in zip(found, photos, strict=False) if a != b), "their number")
                raise VlpipeError(f"'{path}' has other captions than the sets before it, first: {other}")
            photos = found
        self.folder = Path(config.images) if config.images else root
        self.photos = present(photos, self.folder, LAYOUT, config.absent)

    def texts(self) -> Iterator[Row]:
        """A photo's captions, then their perturbed forms, set by set."""
        for photo in self.photos:
            yield from photo.texts()
            for kind in self.kinds:
                for source, text in zip(photo.captions, self.perturbed[kind][photo.id], strict=False):
                    yield photo.text(f"{source}#{kind}", text, f"perturbed:{kind}", source=source)

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """The counts above."""
        return {"images": {"test": 5000}, "texts": {"test": 25010 + 25000 * len(self.kinds)}}


def _halves(path: Path) -> tuple[list[Photo], dict[str, list[str]]]:
    """Photos with their own captions, and the perturbed ones by photo."""
    photos, perturbed = [], {}
    for photo in listed_photos(path, LAYOUT):
        own, forms = list(photo.captions.items())[:-PERTURBED], list(photo.captions.values())[-PERTURBED:]
        if len(own) < PERTURBED:
            raise LAYOUT.refuse(
                f"'{path}': '{photo.id}' has {len(photo.captions)} captions, 10 or more were looked for"
            )
        photos.append(Photo(photo.id, photo.path, photo.split, dict(own)))
        perturbed[photo.id] = forms
    return photos, perturbed
