"""The token files of Flickr8k and Flickr30k: a line is `NAME.jpg#N`, a tab, a caption."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.captioned import Photo
from vlpipe.manifests.layouts import Layout

Splits = Mapping[str, str]  # by file name


def token_photos(path: Path, splits: Splits | None, layout: Layout) -> list[Photo]:
    """Photos in the file's order; with `splits` only those that it names.

    Raises `VlpipeError`: a line of another form, or a photo of a split without a caption.
    """
    captions: dict[str, dict[str, str]] = {}
    for number, line in enumerate(layout.lines(path), start=1):
        text_id, tab, text = line.partition("\t")
        name, mark, _ = text_id.rpartition("#")
        if not (tab and mark):
            raise layout.refuse(f"'{path}' line {number} is '{line[:40]}'; a line is NAME.jpg#N, a tab, a text")
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
