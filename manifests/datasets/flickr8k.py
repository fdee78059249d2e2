"""Flickr8k: 8,000 photos with five captions each.

Hodosh, Young and Hockenmaier, "Framing Image Description as a Ranking Task", JAIR 47 (2013).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from vlpipe.foundation.config import Config
from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.readers import read_records

PHOTOS = ("Flicker8k_Dataset", "Flickr8k_Dataset")  # the archive spells it the first way
TOKENS = "Flickr8k.token.txt"
SPLITS = {
    "Flickr_8k.trainImages.txt": "train",
    "Flickr_8k.devImages.txt": "val",
    "Flickr_8k.testImages.txt": "test",
}
CAPTIONS = "captions.jsonl"
EXPECTED = (
    f"expected {PHOTOS[0]}/*.jpg with {TOKENS} and {', '.join(SPLITS)} beside it (or in Flickr8k_text/), or "
    f"{CAPTIONS} (keys image, split, captions) with images/"
)


class Flickr8kConfig(Config):
    """There is nothing to choose."""


class Flickr8k:
    """The publisher's layout, or `captions.jsonl` with `images/`.

    Of the published 8,091 photos the 8,000 that the split files name are rows (train 6,000, val 1,000, test 1,000;
    40,000 captions), in the order of the token file; the other 91, and the five captions there of
    `2258277193_586949ec62.jpg.1`, which is no photo, are left out. Ids are file names, and `NAME.jpg#0` to `#4`.
    """

    Config = Flickr8kConfig
    source: ClassVar[str] = "https://hockenmaier.cs.illinois.edu/8k-pictures.html"
    licence: ClassVar[str] = (
        "photos: their owners' terms (Flickr); captions: non-commercial research and education"
    )

    def __init__(self, config: Flickr8kConfig, root: Path | None, folder: Path) -> None:
        if root is None or not root.is_dir():
            what = "needs --root DIR" if root is None else f"has no folder '{root}'"
            raise VlpipeError(f"flickr8k {what}; {EXPECTED}; published at {self.source}")
        names = PHOTOS if _text_folder(root) else ("images",)
        photos = next((root / name for name in names if (root / name).is_dir()), None)
        if photos is None or not (_text_folder(root) or (root / CAPTIONS).is_file()):
            raise VlpipeError(f"'{root}' is not Flickr8k: {EXPECTED}; published at {self.source}")
        self.photos = photos
        texts = _text_folder(root)
        self.captions = _published(texts) if texts else _listed(root / CAPTIONS)
        self._check_photos()

    def image_root(self) -> Path:
        """The photos' folder."""
        return self.photos

    def images(self) -> Iterator[Row]:
        """One row a photo."""
        for name, (split, _) in self.captions.items():
            yield {"image_id": name, "path": name, "split": split}

    def texts(self) -> Iterator[Row]:
        """One row a caption, to the letter."""
        for name, (split, captions) in self.captions.items():
            for text_id, text in captions.items():
                yield {"text_id": text_id, "text": text, "image_id": name, "role": "caption", "split": split}

    def _check_photos(self) -> None:
        there = {path.name for path in self.photos.iterdir()}
        missing = [name for name in self.captions if name not in there]
        if missing:
            raise VlpipeError(
                f"{len(missing)} of {len(self.captions)} photos are not in '{self.photos}': "
                f"{', '.join(missing[:3])}, ...; unpack the photo archive whole ({self.source})"
            )


Captions = dict[str, tuple[str, dict[str, str]]]  # by photo: its split, and texts by id


def _text_folder(root: Path) -> Path | None:
    return next((folder for folder in (root, root / "Flickr8k_text") if (folder / TOKENS).is_file()), None)


def _published(folder: Path) -> Captions:
    splits: dict[str, str] = {}
    for file, split in SPLITS.items():
        for number, name in enumerate(_lines(folder / file), start=1):
            if name and splits.setdefault(name.strip(), split) != split:
                raise VlpipeError(f"'{folder / file}' line {number}: '{name}' is in split {splits[name]} too")
    captions: Captions = {}
    for number, line in enumerate(_lines(folder / TOKENS), start=1):
        text_id, tab, text = line.partition("\t")
        name, mark, _ = text_id.rpartition("#")
        if not (tab and mark):
            raise VlpipeError(
                f"'{folder / TOKENS}' line {number} is '{line[:40]}'; expected NAME.jpg#N, a tab, a text"
            )
        if name in splits:
            captions.setdefault(name, (splits[name], {}))[1][text_id] = text
    bare = [name for name in splits if name not in captions]
    if bare:
        raise VlpipeError(
            f"{len(bare)} photos of the splits have no caption in '{folder / TOKENS}', first '{bare[0]}'"
        )
    return captions


def _listed(path: Path) -> Captions:
    captions: Captions = {}
    for number, record in read_records(path):
        name, split, texts = (record.get(key) for key in ("image", "split", "captions"))
        if not (isinstance(name, str) and isinstance(split, str) and isinstance(texts, list)) or name in captions:
            raise VlpipeError(f"'{path}' line {number}: expected image (once), split and a list of captions")
        captions[name] = split, {f"{name}#{place}": text for place, text in enumerate(texts)}
    return captions


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except FileNotFoundError:
        raise VlpipeError(f"'{path}' does not exist; {EXPECTED}; published at {Flickr8k.source}") from None
    except UnicodeDecodeError as error:
        raise VlpipeError(f"'{path}' is not UTF-8 ({error}); unpack the archive again") from None
    return [line.removesuffix("\r") for line in lines[: -1 if lines[-1] == "" else None]]
