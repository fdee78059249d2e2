"""What the ImageNet family shares: 1,000 classes named by WordNet id, in the order of the class index.

Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge", IJCV 115 (2015).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from vlpipe.manifests.classes import ClassConfig, Classes
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.folders import pictures_in, subfolders
from vlpipe.manifests.layouts import Layout
from vlpipe.manifests.prompts import Templates, imagenet_class_names

CLASSES = 1000
TERMS = "images: their owners' terms; ImageNet: non-commercial research and education"


class ImagenetConfig(ClassConfig):
    """ImageNet's own 80 templates, unless others are asked for."""

    templates: Templates = "imagenet"


def wordnet_ids() -> list[str]:
    """The 1,000 WordNet ids by class index, which is their sorted order."""
    from timm.data.imagenet_info import ImageNetInfo

    known = ImageNetInfo()
    return [known.index_to_label_name(index) for index in range(CLASSES)]


def class_names() -> dict[str, str]:
    """The words for each WordNet id, by class index."""
    return dict(zip(wordnet_ids(), imagenet_class_names(), strict=True))


class WordnetFolders:
    """Folders of WordNet ids in one folder a split: labels are the ids, whatever the folders are called.

    A subclass says the layout: `under`, where the root of the splits may lie in the folder that was given, and
    `count`, its pictures as published. Only the classes that have a folder are classes of the set, in the order of
    the class index.
    """

    Config: ClassVar[type[ClassConfig]] = ImagenetConfig
    title: ClassVar[str]
    source: ClassVar[str]
    licence: ClassVar[str] = TERMS
    expected: ClassVar[str]
    under: ClassVar[Sequence[str]] = (".",)
    count: ClassVar[int]

    def __init__(self, config: ClassConfig, root: Path | None, folder: Path) -> None:
        self.config = config
        self.parts = self.split_folders()
        self.names = class_names()
        self.layout = Layout(self.title, self.expected, self.source)
        self.root = self._root(self.layout.root(root))
        self.folders = {
            split: self._folders(self.root / part)
            for split, part in self.parts.items()
            if (self.root / part).is_dir()
        }
        found = {label for folders in self.folders.values() for label in folders}
        self.classes = Classes.configured(
            config, {label: self.names[label] for label in self.names if label in found}
        )

    def split_folders(self) -> Mapping[str, str]:
        """Folder by split: one split in the root itself, unless a subclass says more."""
        return {"test": "."}

    def places(self, given: Path) -> Sequence[str]:
        """`under`, unless that depends on the settings."""
        return self.under

    def needed(self) -> Sequence[str]:
        """What the root of the splits must hold some of."""
        return list(self.class_folders())

    def class_folders(self) -> Mapping[str, str]:
        """WordNet id by the name of a class's folder, in the order of the class index."""
        return {label: label for label in self.names}

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """Pictures by split."""
        return {"images": {"test": self.count}}

    def image_root(self) -> Path:
        """The folder that holds the splits; the classes' own, where there is one split."""
        return self.root

    def images(self) -> Iterator[Row]:
        """One row a picture, class by class; ids are paths, since a file's name may stand in two folders."""
        for split, folders in self.folders.items():
            for label, name in folders.items():
                place = Path(self.parts[split], name)
                for picture in pictures_in(self.root / place):
                    yield self.row(split, label, f"{place.as_posix()}/{picture}")

    def row(self, split: str, label: str, path: str) -> Row:
        """One picture's row."""
        return self.classes.image(path, path, split, label)

    def texts(self) -> Iterator[Row]:
        """Prompts of the classes that the set has."""
        return self.classes.prompts()

    def _root(self, given: Path) -> Path:
        needed = self.needed()
        for place in self.places(given):
            if any((given / place / name).is_dir() for name in needed):
                return given / place
        raise self.layout.refuse(f"'{given}' is not {self.title}")

    def _folders(self, folder: Path) -> dict[str, str]:
        """Folder by WordNet id. Raises `VlpipeError` for a folder that is no class."""
        there, labels = set(subfolders(folder)), self.class_folders()
        strange = sorted(there - labels.keys())
        if strange or not there:
            what = f"folder '{strange[0]}', which is no class of ImageNet" if strange else "no folders of classes"
            raise self.layout.refuse(f"'{folder}' holds {what}")
        return {label: name for name, label in labels.items() if name in there}
