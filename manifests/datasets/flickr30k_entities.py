"""Flickr30k Entities: the phrases of Flickr30k's captions, linked to boxes.

Plummer et al., "Flickr30K Entities: Collecting Region-to-Phrase Correspondences for Richer Image-to-Sentence
Models", IJCV 123 (2017).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from vlpipe.manifests.caption_files import split_files
from vlpipe.manifests.captioned import Captioned, Photo, PhotoConfig, photo_folder, present
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.entities import Sentence, chain_boxes, read_boxes, read_sentences
from vlpipe.manifests.layouts import Layout
from vlpipe.manifests.upright import picture_frame, upright_boxes

SPLITS = {"train.txt": "train", "val.txt": "val", "test.txt": "test"}
UNRELATED = "UNRELATED_CAPTIONS"
LAYOUT = Layout(
    "Flickr30k Entities",
    f"Sentences/NUMBER.txt, Annotations/NUMBER.xml (unpack annotations.zip) and {', '.join(SPLITS)}, with "
    "flickr30k-images/NUMBER.jpg beside them or in --set images='\"DIR\"'",
    "https://github.com/BryanPlummer/flickr30k_entities (photos: "
    "https://shannon.cs.illinois.edu/DenotationGraph/)",
)


class Flickr30kEntitiesConfig(PhotoConfig):
    """Nothing beside the photos' folder."""


class Flickr30kEntities(Captioned):
    """31,783 photos (train 29,783, val 1,000, test 1,000), 158,915 captions, and a text of role phrase for each
    phrase that is marked in a caption (its `source_text_id`); about 276,000 boxes.

    A phrase whose chain has boxes has one region, the union of them; what is drawn nowhere (the scene, things that
    are not visible, phrases that are not about anything to be seen, chain 0) has none. The publisher's coordinates
    count pixels from 1, both ends included: here `xmin - 1` to `xmax`, in the upright photo. Ids: `NUMBER.jpg`,
    `#0` to `#4` as in Flickr30k's token file, and `NUMBER.jpg#0/0`, ... for phrases and regions. Captions that the
    file UNRELATED_CAPTIONS names have the attribute `unrelated`.
    """

    Config = Flickr30kEntitiesConfig
    source: ClassVar[str] = LAYOUT.source
    licence: ClassVar[str] = "photos: their owners' terms (Flickr); non-commercial research and education"

    def __init__(self, config: Flickr30kEntitiesConfig, root: Path | None, folder: Path) -> None:
        self.root = LAYOUT.root(root)
        for name in ("Sentences", "Annotations", *SPLITS):
            LAYOUT.need(self.root, name)
        names = ("flickr30k-images", "flickr30k_images", "images")
        self.folder = photo_folder(LAYOUT, self.root, names, config)
        splits = split_files(self.root, SPLITS, LAYOUT, ".jpg")
        photos = [Photo(name, name, split) for name, split in splits.items()]
        self.photos = present(photos, self.folder, LAYOUT, config.absent)
        self.unrelated = _unrelated(self.root / UNRELATED)

    def texts(self) -> Iterator[Row]:
        """A photo's captions, each followed by its phrases."""
        for photo in self.photos:
            for caption, sentence in self._sentences(photo):
                more = {"unrelated": "yes"} if caption in self.unrelated else {}
                yield photo.text(caption, sentence.text, **more)
                for number, phrase in enumerate(sentence.phrases):
                    yield photo.text(
                        f"{caption}/{number}",
                        phrase.text,
                        "phrase",
                        source=caption,
                        chain=phrase.chain,
                        types="/".join(phrase.types),
                        first_word=str(phrase.first_word),
                    )

    def regions(self) -> Iterator[Row]:
        """One row a phrase that has boxes."""
        for photo in self.photos:
            path = self.root / "Annotations" / f"{photo.id.removesuffix('.jpg')}.xml"
            drawn = read_boxes(path, LAYOUT)
            frame = picture_frame(self.folder / photo.path)
            for caption, sentence in self._sentences(photo):
                for number, phrase in enumerate(sentence.phrases):
                    boxes = chain_boxes(drawn, phrase.chain)
                    if boxes:
                        yield {
                            "region_id": f"{caption}/{number}",
                            "text_id": f"{caption}/{number}",
                            "image_id": photo.id,
                            "label": "/".join(phrase.types),
                            "boxes": upright_boxes(boxes, drawn.size, frame, photo.path),
                        }

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """Photos; phrases are not counted by the publisher."""
        return {"images": {"train": 29783, "val": 1000, "test": 1000}}

    def _sentences(self, photo: Photo) -> Iterator[tuple[str, Sentence]]:
        path = self.root / "Sentences" / f"{photo.id.removesuffix('.jpg')}.txt"
        for number, sentence in enumerate(read_sentences(path, LAYOUT)):
            yield f"{photo.id}#{number}", sentence


def _unrelated(path: Path) -> frozenset[str]:
    """Caption ids of lines `NUMBER N` with N counted from 1."""
    if not path.is_file():
        return frozenset()
    found = set()
    for line in LAYOUT.lines(path):
        number, _, place = line.partition(" ")
        if number.isdecimal() and place.strip().isdecimal():
            found.add(f"{number}.jpg#{int(place) - 1}")
    return frozenset(found)
