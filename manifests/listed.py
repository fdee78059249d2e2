"""Retrieval test sets as the BLIP code base publishes them: coco_karpathy_test.json, flickr30k_test.json.

A JSON list of objects with `image`, a path, and `caption`, a list of texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlpipe.manifests.captioned import Photo
from vlpipe.manifests.layouts import Layout


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
