"""The classification sets that torchvision knows the layout of: `torchvision:DTD`, `torchvision:Food101`, ..."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from vlpipe.foundation.errors import UnknownNameError, VlpipeError
from vlpipe.manifests.classes import ClassConfig, Classes
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.pictures import save_png
from vlpipe.manifests.prompts import readable
from vlpipe.manifests.torchvision_sets import (
    MEMBERS,
    arrays_of,
    check_member,
    class_labels,
    files_of,
    open_member,
)

DRAWING = "png-1"


class TorchvisionConfig(ClassConfig):
    """Which set, and which part of it."""

    member: str = ""  # given as torchvision:NAME
    splits: list[str] | None = Field(default=None, min_length=1)  # of train, val, test: those of the set
    options: dict[str, Any] = Field(default_factory=dict)  # for torchvision's class, for example partition = 2


class Torchvision:
    """`--root` is torchvision's root: the folder that holds `dtd/`, `food-101/`, ...; nothing is downloaded.

    Where the set has picture files, their paths below the root are ids and paths; else pictures are written as PNG
    into the manifest's folder, with ids `SPLIT/NUMBER` in the library's order. Labels are the library's class
    names, or numbers where it has none (FER2013, GTSRB, PCAM, SVHN, USPS: the setting `classes` gives words).
    """

    Config = TorchvisionConfig
    licence = "see the publisher"

    def __init__(self, config: TorchvisionConfig, root: Path | None, folder: Path) -> None:
        check_member(config.member, config.options)
        self.source = f"https://docs.pytorch.org/vision/stable/generated/torchvision.datasets.{config.member}.html"
        if root is None or not root.is_dir():
            what = "needs --root DIR" if root is None else f"has no folder '{root}'"
            raise VlpipeError(
                f"torchvision:{config.member} {what}: torchvision's root folder; layout at {self.source}"
            )
        self.root, self.folder = root, folder
        known = MEMBERS[config.member]
        for split in config.splits or ():
            if split not in known:
                raise UnknownNameError(f"split of torchvision:{config.member}", split, known)
        self.opened = {
            split: open_member(config.member, root, {**known[split], **config.options}, self.source)
            for split in config.splits or known
        }
        self.files = {split: files_of(opened) for split, opened in self.opened.items()}
        # By split: the library may number the classes of each split's own list (DTD).
        self.labels = {split: class_labels(config.member, opened) for split, opened in self.opened.items()}
        labels = dict.fromkeys(label for found in self.labels.values() for label in found)
        self.classes = Classes.configured(config, {label: readable(label) for label in labels})

    def image_root(self) -> Path:
        """Torchvision's root; the manifest's own folder where pictures are written."""
        return self.folder if None in self.files.values() else self.root

    def images(self) -> Iterator[Row]:
        """One row a picture, split by split."""
        for split, files in self.files.items():
            if files is None:
                yield from self._written(split)
            else:
                for path, number in files:
                    name = path.relative_to(self.root).as_posix()
                    yield self._row(name, name, split, number)

    def texts(self) -> Iterator[Row]:
        """The classes' prompts."""
        return self.classes.prompts()

    def _written(self, split: str) -> Iterator[Row]:
        for number, (picture, label) in enumerate(arrays_of(self.opened[split])):
            name = f"{split or 'all'}/{number:06d}"
            save_png(self.folder / DRAWING / f"{name}.png", picture)
            yield self._row(name, f"{DRAWING}/{name}.png", split, label)

    def _row(self, image_id: str, path: str, split: str, number: Any) -> Row:
        if number is None:  # FER2013 keeps its test labels back
            return {"image_id": image_id, "path": path, "split": split or None}
        return self.classes.image(image_id, path, split or None, self.labels[split][int(number)])
