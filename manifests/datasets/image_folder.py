"""Any pictures in folders named by their class, with or without folders of splits above them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.classes import ClassConfig, Classes
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.folders import pictures_in, subfolders
from vlpipe.manifests.layouts import Layout
from vlpipe.manifests.prompts import readable

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
LAYOUT = Layout(
    "image_folder", "DIR/SPLIT/CLASS/*.jpg (splits train, val, test) or DIR/CLASS/*.jpg, pictures of any format"
)


class ImageFolderConfig(ClassConfig):
    """How the folders are read."""

    layout: Literal["auto", "splits", "classes"] = "auto"  # auto: splits where all folders are named like splits
    split: str | None = None  # of all pictures, where the folders are classes


class ImageFolder:
    """Ids and paths are relative to the root, labels are folder names; pictures in folders below a class are its
    own. Where splits have folders, `training`, `validation`, `valid`, `dev` and `testing` become train, val, test.
    """

    Config = ImageFolderConfig
    source: ClassVar[str] = "pictures in folders of their classes"
    licence: ClassVar[str] = "unknown"

    def __init__(self, config: ImageFolderConfig, root: Path | None, folder: Path) -> None:
        self.root = LAYOUT.root(root)
        self.splits = _splits(self.root, config)
        self.folders = {name: subfolders(self.root / name) for name in self.splits}
        labels = sorted(set(chain.from_iterable(self.folders.values())))
        if not labels:
            raise LAYOUT.refuse(f"'{root}' holds no folders of classes")
        self.classes = Classes.configured(config, {label: readable(label) for label in labels})

    def image_root(self) -> Path:
        """The folder that was given."""
        return self.root

    def images(self) -> Iterator[Row]:
        """One row a picture, split by split and class by class. Raises `VlpipeError` for a class without any."""
        for name, split in self.splits.items():
            for label in self.folders[name]:
                start = "" if name == "." else f"{name}/"
                yield from class_rows(self.classes, self.root, f"{start}{label}", label, split)

    def texts(self) -> Iterator[Row]:
        """The classes' prompts."""
        return self.classes.prompts()


def class_rows(classes: Classes, root: Path, folder: str, label: str, split: str | None) -> Iterator[Row]:
    """Rows of the pictures in `folder` (relative to `root`). Raises `VlpipeError` where there is none."""
    empty = True
    for name in pictures_in(root / folder):
        empty = False
        path = f"{folder}/{name}"
        yield classes.image(path, path, split, label)
    if empty:
        raise VlpipeError(f"'{root / folder}' is a class without pictures; unpack the archive whole, or remove it")


def _splits(root: Path, config: ImageFolderConfig) -> dict[str, str | None]:
    """Folder of each split, '.' where the classes lie in the root itself, and the split's name."""
    names = subfolders(root)
    known = [name for name in names if name.lower() in SPLITS]
    if config.layout == "classes" or (config.layout == "auto" and not known):
        return {".": config.split}
    if len(known) < len(names) or not known:
        others = [name for name in names if name not in known]
        raise VlpipeError(
            f"'{root}' holds {', '.join(known[:3]) or 'no folder named like a split'}"
            + (f" beside {', '.join(others[:3])}" if others else "")
            + "; expected only splits or only classes: say --set 'layout=\"classes\"', or move the others away"
        )
    if config.split is not None:
        raise VlpipeError(f"setting 'split' = '{config.split}', but '{root}' has folders of splits; leave it out")
    by_place = sorted(known, key=lambda name: (list(SPLITS.values()).index(SPLITS[name.lower()]), name))
    return {name: SPLITS[name.lower()] for name in by_place}
