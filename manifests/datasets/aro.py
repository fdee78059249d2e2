"""ARO, attribution, relation and order: four sets whose false captions have the true one's words.

Yuksekgonul et al., "When and why vision-language models behave like bags-of-words, and what to do about it?",
ICLR 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from vlpipe.manifests.caption_files import listed_photos
from vlpipe.manifests.captioned import Photo, PhotoConfig, photo_folder, present
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.layouts import Layout
from vlpipe.manifests.orders import plain, reordered
from vlpipe.manifests.relations import Case, Cases, read_cases

COUNTS = {"vg_relation": 23937, "vg_attribution": 28748, "coco_order": 25010, "flickr30k_order": 5000}
FILES = {
    "vg_relation": "visual_genome_relation.json",
    "vg_attribution": "visual_genome_attribution.json",
    "coco_order": "coco_karpathy_{split}.json",
    "flickr30k_order": "flickr30k_{split}.json",
}
LAYOUT = Layout(
    "ARO",
    f"{FILES['vg_relation']} or {FILES['vg_attribution']} (lists of objects with image_path, bbox_x, bbox_y, "
    "bbox_w, bbox_h, true_caption, false_caption) with images/, or coco_karpathy_test.json with val2014/, or "
    "flickr30k_test.json with flickr30k-images/ (lists of objects with image and caption)",
    "https://github.com/mertyg/vision-language-models-are-bows (captions of the order sets: "
    "https://storage.googleapis.com/sfr-vision-language-research/datasets/)",
)


class AroConfig(PhotoConfig):
    """Which of the four sets, and how it is made."""

    subset: Literal["vg_relation", "vg_attribution", "coco_order", "flickr30k_order"] = "vg_relation"
    crop: bool = True  # of the two vg sets: show the box that the caption is about, as the benchmark does
    split: Literal["test", "val"] = "test"  # of the two order sets
    words: int = Field(default=30, ge=1)  # of the order sets: captions are cut to so many
    seed: int = Field(default=0, ge=0)  # of the order sets


class Aro:
    """VG-Relation (23,937 cases), VG-Attribution (28,748), COCO-Order (25,010 captions of the test split) or
    Flickr30k-Order (5,000), all of split test (or val, of the last two).

    The vg sets: a true caption and its hard negative a case, `vg_relation/0` and `vg_relation/0#negative` by place
    in the file. The part of the photo that they are about is cut out into the manifest's folder (lossless; image
    id `PATH@X,Y,W,H`); with `crop = false` the image is the whole photo and the part a region of both texts.

    The order sets: captions in lower case without marks, and up to four `perturbed:RULE` texts each, made by the
    rules of vlpipe.manifests.orders; one that leaves the text as it was is left out.
    """

    Config = AroConfig
    source: ClassVar[str] = LAYOUT.source
    licence: ClassVar[str] = "texts: MIT; photos: Visual Genome CC BY 4.0, COCO and Flickr30k their owners' terms"

    def __init__(self, config: AroConfig, root: Path | None, folder: Path) -> None:
        root = LAYOUT.root(root)
        self.config = config
        path = LAYOUT.need(root, FILES[config.subset].format(split=config.split))
        self.cases: Cases | None = None
        if config.subset.startswith("vg_"):
            photos = photo_folder(LAYOUT, root, ("images",), config)
            cases = read_cases(path, config.subset, LAYOUT)
            there = present([Photo(name, name) for name in _names(cases)], photos, LAYOUT, config.absent)
            kept = {photo.id for photo in there}
            self.cases = Cases([case for case in cases if case.path in kept], photos, folder, crop=config.crop)
        else:
            self.photos_folder = Path(config.images) if config.images else root
            listed = list(listed_photos(path, LAYOUT, config.split))
            self.photos = present(listed, self.photos_folder, LAYOUT, config.absent)

    def image_root(self) -> Path:
        """The photos' folder, or the manifest's own with crops in it."""
        return self.cases.image_root() if self.cases else self.photos_folder

    def images(self) -> Iterator[Row]:
        """One row an image; writes the crops on the way."""
        return self.cases.images() if self.cases else (photo.image() for photo in self.photos)

    def texts(self) -> Iterator[Row]:
        """Each true caption, then its false ones."""
        return self.cases.texts() if self.cases else self._orders()

    def regions(self) -> Iterator[Row]:
        """The parts of whole photos, two rows a case."""
        return self.cases.regions() if self.cases else iter(())

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """Cases of the vg sets; the order sets have photos."""
        subset = self.config.subset
        if self.cases:
            return {"texts": {"test": 2 * COUNTS[subset]}}
        return {"images": {self.config.split: 5000 if subset == "coco_order" else _flickr(self.config.split)}}

    def _orders(self) -> Iterator[Row]:
        for photo in self.photos:
            for text_id, caption in photo.captions.items():
                true = plain(caption, self.config.words)
                yield photo.text(text_id, true)
                for rule, words in reordered(caption, text_id, self.config.seed):
                    text = plain(words, self.config.words)
                    if text != true:
                        yield photo.text(f"{text_id}#{rule}", text, f"perturbed:{rule}", source=text_id)


def _names(cases: list[Case]) -> dict[str, None]:
    return dict.fromkeys(case.path for case in cases)


def _flickr(split: str) -> int:
    return 1000 if split == "test" else 1014
