"""ImageNet-1K (ILSVRC 2012): 1,000 classes.

Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge", IJCV 115 (2015).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from vlpipe.manifests.imagenet import WordnetFolders

COUNTS = {"train": 1_281_167, "val": 50_000}


class Imagenet(WordnetFolders):
    """`train/WNID/*.JPEG` and `val/WNID/*.JPEG`, or one of them: 1,281,167 and 50,000 pictures as published.

    The publisher packs the validation pictures without folders: valprep.sh, or torchvision's ImageNet, sorts them.
    """

    title: ClassVar[str] = "ImageNet"
    source: ClassVar[str] = "https://image-net.org/download-images.php"
    expected: ClassVar[str] = (
        "train/WNID/*.JPEG and val/WNID/*.JPEG (or one of them), WNID like n01440764: sort the flat "
        "validation pictures into folders first (valprep.sh, or torchvision.datasets.ImageNet)"
    )
    under: ClassVar[Sequence[str]] = (".", "imagenet", "ILSVRC/Data/CLS-LOC")  # the last as Kaggle packs it

    def split_folders(self) -> Mapping[str, str]:
        """Train and val."""
        return {"train": "train", "val": "val"}

    def needed(self) -> Sequence[str]:
        """A split."""
        return list(self.parts.values())

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """Of the splits that are there."""
        return {"images": {split: COUNTS[split] for split in self.folders}}
