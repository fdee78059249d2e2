"""ImageNet-O: pictures of none of ImageNet's classes, to test what notices that.

Hendrycks, Zhao, Basart, Steinhardt and Song, "Natural Adversarial Examples", CVPR 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from vlpipe.manifests.contracts import Row
from vlpipe.manifests.imagenet import WordnetFolders


class ImagenetO(WordnetFolders):
    """`imagenet-o/WNID/*.JPEG`: 2,000 pictures in folders of 200 of ImageNet's classes as published.

    A picture shows nothing of its folder's class: it is one that a ResNet-50 takes for it. So rows have no label;
    the folder is the attribute `taken_for`. Prompts are of these 200 classes.
    """

    title: ClassVar[str] = "ImageNet-O"
    source: ClassVar[str] = "https://github.com/hendrycks/natural-adv-examples"
    expected: ClassVar[str] = "imagenet-o/WNID/*.JPEG, 200 classes, WNID like n01443537"
    under: ClassVar[Sequence[str]] = ("imagenet-o", ".")
    count: ClassVar[int] = 2_000

    def row(self, split: str, label: str, path: str) -> Row:
        """One picture's row, without a label."""
        return {"image_id": path, "path": path, "split": split, "attributes": {"taken_for": label}}
