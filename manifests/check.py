"""What is wrong with a manifest, and what it holds."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from vlpipe.foundation.progress import Advance, silent
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.shards import file_bytes, file_is_there

SAMPLE = 100  # images whose headers are read where not all are asked for
SHOWN = 3
Numbers = dict[str, int | float]


@dataclass
class Report:
    """What a check found: `errors` are one line each."""

    numbers: Numbers = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def add(self, name: str, found: Sequence[str], sentence: str) -> None:
        """Count what was found, an error where it is not nothing."""
        self.numbers[name] = len(found)
        if found:
            self.errors.append(f"{len(found)} {sentence}: {shown(found)}")


def check(manifest: Manifest, *, every_image: bool = False, advance: Advance = silent) -> Report:
    """Digest, files, splits and texts. Raises `StaleError` where the rows are not those of the description.

    Image headers and checksums are read of a sample of 100, or of every image; pixels are not decoded.
    """
    manifest.verify()
    report = Report({"images": manifest.count("image"), "texts": manifest.count("text")})
    missing = missing_images(manifest)
    report.add("missing_images", missing, f"image files are not under '{manifest.image_root}'")
    report.add("unreadable_images", unreadable_images(manifest, missing, every_image, advance), "are no pictures")
    report.add("split_overlaps", split_overlaps(manifest), "images are in two splits")
    if manifest.count("region"):
        report.numbers["regions"] = manifest.count("region")
        report.add("region_mismatches", region_mismatches(manifest), "regions have another image than their text")
    report.numbers |= captions_per_image(manifest) | text_numbers(manifest)
    return report


def shown(names: Sequence[str]) -> str:
    """The first few names."""
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def missing_images(manifest: Manifest) -> list[str]:
    """Paths, as the manifest has them, where no file is."""
    return [path for path in _paths(manifest) if not file_is_there(manifest.image_root / path)]


def unreadable_images(manifest: Manifest, missing: Sequence[str], every: bool, advance: Advance) -> list[str]:
    """Paths of files that Pillow does not take for a whole picture: all of them, or among an even sample."""
    absent = set(missing)
    paths = [path for path in _paths(manifest) if path not in absent]
    step = 1 if every else max(1, len(paths) // SAMPLE)
    bad = []
    for path in paths[::step]:
        if not _is_picture(manifest.image_root / path):
            bad.append(path)
        advance(1)
    return bad


def split_overlaps(manifest: Manifest) -> list[str]:
    """Images that are in two splits: one file under two ids, or a text in another split than its image."""
    images = manifest.table("image", ["image_id", "path", "split"])
    texts = manifest.table("text", ["image_id", "split"])
    texts = texts.filter(pc.is_valid(texts["image_id"]))
    by_path = _keyed(images["path"], images["split"])
    by_id = pa.concat_tables([_keyed(each["image_id"], each["split"]) for each in (images, texts)])
    found: set[str] = set()
    for table in (by_path, by_id):
        splits = table.group_by("key").aggregate([("split", "count_distinct")])
        found.update(splits.filter(pc.greater(splits["split_count_distinct"], 1))["key"].to_pylist())
    return sorted(found)


def region_mismatches(manifest: Manifest) -> list[str]:
    """Ids of regions that give a text and an image where the text belongs to another image."""
    regions = manifest.table("region", ["region_id", "image_id", "text_id"])
    texts = manifest.table("text", ["text_id", "image_id"])
    owner = pc.take(texts["image_id"], pc.index_in(regions["text_id"], texts["text_id"]))
    return [
        str(name) for name in regions["region_id"].filter(pc.not_equal(regions["image_id"], owner)).to_pylist()
    ]


def captions_per_image(manifest: Manifest) -> Numbers:
    """Least, median and most captions of an image; images without one count as 0."""
    if not manifest.count("image"):
        return {}
    texts = manifest.table("text", ["image_id", "role"])
    captions = texts.filter(pc.equal(texts["role"], "caption"))
    ids = manifest.table("image", ["image_id"])["image_id"]
    rows = pc.drop_null(pc.index_in(captions["image_id"], ids)).to_numpy()
    counts = np.bincount(rows, minlength=len(ids))
    return {
        "captions_per_image_min": int(counts.min()),
        "captions_per_image_median": float(np.median(counts)),
        "captions_per_image_max": int(counts.max()),
    }


def text_numbers(manifest: Manifest) -> Numbers:
    """How many texts repeat an earlier one, and the characters of the longest."""
    if not manifest.count("text"):
        return {}
    texts = manifest.table("text", ["text"])["text"]
    longest = pc.max(pc.utf8_length(texts)).as_py()
    return {"repeated_texts": len(texts) - pc.count_distinct(texts).as_py(), "longest_text_characters": longest}


def _keyed(key: pa.ChunkedArray, split: pa.ChunkedArray) -> pa.Table:
    return pa.table({"key": key, "split": split})


def _paths(manifest: Manifest) -> list[str]:
    return [str(path) for path in manifest.table("image", ["path"])["path"].to_pylist()]


def _is_picture(path: Path) -> bool:
    """Whether Pillow opens it and its structure holds; any way to fail is the file's fault."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(BytesIO(file_bytes(path))) as picture:
                picture.verify()
    except Exception:
        return False
    return True
