"""SugarCrepe: 7,511 pairs of a caption and a fluent one that is false, in seven files.

Hsieh et al., "SugarCrepe: Fixing Hackable Benchmarks for Vision-Language Compositionality", NeurIPS 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from vlpipe.manifests.captioned import Captioned, Photo, PhotoConfig, photo_folder, present
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.layouts import Layout

Subset = Literal["add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj"]
COUNTS: Mapping[Subset, int] = {
    "add_att": 692,
    "add_obj": 2062,
    "replace_att": 788,
    "replace_obj": 1652,
    "replace_rel": 1406,
    "swap_att": 666,
    "swap_obj": 245,
}
PHOTOS = ("val2017", "images", "../val2017")
LAYOUT = Layout(
    "SugarCrepe",
    f"{', '.join(f'{name}.json' for name in COUNTS)} (objects by number with filename, caption, negative_caption) "
    "in data/ or not, and COCO's val2017/ beside them or under --set images='\"DIR\"'",
    "https://github.com/RAIVNLab/sugar-crepe (photos: https://cocodataset.org/#download)",
)


class SugarcrepeConfig(PhotoConfig):
    """Which of the seven files."""

    subsets: list[Subset] = Field(default_factory=lambda: list(COUNTS), min_length=1)


class Sugarcrepe(Captioned):
    """All pairs are split test. An image is a photo of COCO val2017; a pair is a caption `add_att/0` and its
    hard negative `add_att/0#negative`, both with the attribute `subset`.

    Pairs as published: add_att 692, add_obj 2,062, replace_att 788, replace_obj 1,652, replace_rel 1,406, swap_att
    666, swap_obj 245. The numbers are the publisher's keys. With `absent = "leave_out"` the pairs are rows whose
    photo is there.
    """

    Config = SugarcrepeConfig
    source: ClassVar[str] = LAYOUT.source
    licence: ClassVar[str] = "texts: MIT; photos: their owners' terms (Flickr)"

    def __init__(self, config: SugarcrepeConfig, root: Path | None, folder: Path) -> None:
        root = LAYOUT.root(root)
        self.subsets = list(dict.fromkeys(config.subsets))
        files = {name: LAYOUT.need(root, f"data/{name}.json", f"{name}.json") for name in self.subsets}
        self.pairs = [pair for name, path in files.items() for pair in _pairs(name, path)]
        self.folder = photo_folder(LAYOUT, root, PHOTOS, config)
        names = dict.fromkeys(name for _, name, *_ in self.pairs)
        photos = [Photo(name, name, "test") for name in names]
        self.photos = present(photos, self.folder, LAYOUT, config.absent)

    def texts(self) -> Iterator[Row]:
        """Two rows a pair, file by file."""
        photos = {photo.id: photo for photo in self.photos}
        for text_id, name, caption, negative in self.pairs:
            if name in photos:
                subset = text_id.partition("/")[0]
                yield photos[name].text(text_id, caption, subset=subset)
                yield photos[name].text(
                    f"{text_id}#negative", negative, "hard_negative", source=text_id, subset=subset
                )

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """Two texts a pair."""
        return {"texts": {"test": 2 * sum(COUNTS[name] for name in self.subsets)}}


def _pairs(subset: str, path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Text id, file name, caption and negative of each pair."""
    data: Any = LAYOUT.json(path)
    if not isinstance(data, dict):
        raise LAYOUT.refuse(f"'{path}' is no object of pairs by number")
    for key, pair in data.items():
        where = f"'{path}' pair {key}"
        name, caption, negative = (
            LAYOUT.part(pair, part, str, where) for part in ("filename", "caption", "negative_caption")
        )
        yield f"{subset}/{key}", name, caption, negative
