"""The splits of Karpathy and Fei-Fei, "Deep Visual-Semantic Alignments" (CVPR 2015): dataset_NAME.json.

One JSON object with `images`, a list of objects with `filename`, `split` (train, val, test, and restval for COCO),
`sentences` (each with `raw` and `sentid`), and for COCO `filepath`, the photo's folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlpipe.manifests.captioned import Photo
from vlpipe.manifests.layouts import Layout

SOURCE = "https://cs.stanford.edu/people/karpathy/deepimagesent/"


def karpathy_photos(path: Path, layout: Layout) -> Iterator[Photo]:
    """Photos in the file's order, ids are file names; captions `NAME#0`, `#1`, ..., or, where photos have a
    `filepath` (COCO), the publisher's sentence ids, which are COCO's own caption ids.

    Raises `VlpipeError` that names the entry where a key is not there.
    """
    for number, entry in enumerate(layout.part(layout.json(path, _lean), "images", list, f"'{path}'")):
        where = f"'{path}' images[{number}]"
        name = layout.part(entry, "filename", str, where)
        folder = layout.part(entry, "filepath", str, where) if "filepath" in entry else None
        captions = {}
        for place, sentence in enumerate(layout.part(entry, "sentences", list, where)):
            own = str(layout.part(sentence, "sentid", int, f"{where} sentences[{place}]")) if folder else None
            captions[own or f"{name}#{place}"] = layout.part(sentence, "raw", str, f"{where} sentences[{place}]")
        split = layout.part(entry, "split", str, where)
        yield Photo(name, f"{folder}/{name}" if folder else name, split, captions)


def _lean(record: dict[str, Any]) -> dict[str, Any]:
    """Without the word lists, which are most of the file."""
    record.pop("tokens", None)
    return record
