"""Caption files in the three forms that several data sets are published in.

Token files (Flickr8k, Flickr30k): a line is `NAME.jpg#N`, a tab, a caption; splits are lists of names.
Karpathy and Fei-Fei's splits, "Deep Visual-Semantic Alignments" (CVPR 2015), dataset_NAME.json: one object with
`images`, a list of objects with `filename`, `split` (train, val, test, and restval for COCO), `sentences` (each
with `raw` and `sentid`), and for COCO `filepath`, the photo's folder.
Test sets as the BLIP code base publishes them, coco_karpathy_test.json, flickr30k_test.json: a list of objects
with `image`, a path, and `caption`, a list of texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.captioned import Photo
from vlpipe.manifests.layouts import Layout

Splits = Mapping[str, str]  # by file name


def token_photos(path: Path, splits: Splits | None, layout: Layout) -> list[Photo]:
    """Photos in the file's order; with `splits` only those that it names.

    Raises `VlpipeError`: a line of another form, an id twice, or a photo of a split without a caption.
    """
    captions: dict[str, dict[str, str]] = {}
    for number, line in enumerate(layout.lines(path), start=1):
        text_id, tab, text = line.partition("\t")
        name, mark, _ = text_id.rpartition("#")
        if not (tab and mark):
            raise layout.refuse(f"'{path}' line {number} is '{line[:40]}'; a line is NAME.jpg#N, a tab, a text")
        if text_id in captions.get(name, ()):
            raise layout.refuse(f"'{path}' line {number}: '{text_id}' stands twice")
        if splits is None or name in splits:
            captions.setdefault(name, {})[text_id] = text
    bare = [name for name in splits or () if name not in captions]
    if bare:
        raise VlpipeError(f"{len(bare)} photos of the splits have no caption in '{path}', first '{bare[0]}'")
    return [Photo(name, name, splits[name] if splits else None, texts) for name, texts in captions.items()]


def split_files(folder: Path, names: Mapping[str, str], layout: Layout, ending: str = "") -> dict[str, str]:
    """Splits by photo of files with a name a line; `names` has the split of each file.

    Raises `VlpipeError` for a file that is not there and for a photo that two of them name.
    """
    splits: dict[str, str] = {}
    for file, split in names.items():
        for number, line in enumerate(layout.lines(folder / file), start=1):
            name = line.strip() + ending
            if line.strip() and splits.setdefault(name, split) != split:
                raise VlpipeError(f"'{folder / file}' line {number}: '{name}' is in split {splits[name]} too")
    return splits


def karpathy_photos(path: Path, layout: Layout) -> Iterator[Photo]:
    """Photos in the file's order, ids are file names; captions `NAME#0`, `#1`, ..., or, where photos have a
    `filepath` (COCO), the publisher's sentence ids, which are COCO's own caption ids.

    Raises `VlpipeError` that names the entry where a key is not there.
    """
    for number, entry in enumerate(layout.part(layout.json(path, _lean), "images", list, f"'{path}'")):
        where = f"'{path}' images[{number}]"
        name = layout.part(entry, "filename", str, where)
        folder = layout.part(entry, "filepath", str, where) if "filepath" in entry else None
        captions: dict[str, str] = {}
        for place, sentence in enumerate(layout.part(entry, "sentences", list, where)):
            here = f"{where} sentences[{place}]"
            own = str(layout.part(sentence, "sentid", int, here)) if folder else f"{name}#{place}"
            if own in captions:
                raise layout.refuse(f"{here} has sentid {own}, which stands there twice")
            captions[own] = layout.part(sentence, "raw", str, here)
        split = layout.part(entry, "split", str, where)
        yield Photo(name, f"{folder}/{name}" if folder else name, split, captions)


def _lean(record: dict[str, Any]) -> dict[str, Any]:
    """Without the word lists, which are most of the file."""
    record.pop("tokens", None)
    return record


def listed_photos(path: Path, layout: Layout, split: str = "test") -> Iterator[Photo]:
    """Photos in the file's order; ids are paths, and `PATH#0`, `PATH#1`, ... for captions.

    Raises `VlpipeError` that names the entry: another form, a caption that is no text.
    """
    data = layout.json(path)
    if not isinstance(data, list):
        raise layout.refuse(f"'{path}' is no list of images")
    for number, entry in enumerate(data):
        where = f"'{path}' [{number}]"
        name = layout.part(entry, "image", str, where)
        texts = layout.part(entry, "caption", list, where)
        yield Photo(name, name, split, {f"{name}#{place}": text for place, text in enumerate(texts)})
