"""ImageNet-A: natural pictures that a ResNet-50 gets wrong, of 200 of ImageNet's classes.

Hendrycks, Zhao, Basart, Steinhardt and Song, "Natural Adversarial Examples", CVPR 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from vlpipe.manifests.imagenet import WordnetFolders


class ImagenetA(WordnetFolders):
    """`imagenet-a/WNID/*.jpg`: 7,500 pictures of 200 classes as published; prompts are of these classes only."""

    title: ClassVar[str] = "ImageNet-A"
    source: ClassVar[str] = "https://github.com/hendrycks/natural-adv-examples"
    expected: ClassVar[str] = "imagenet-a/WNID/*.jpg, 200 classes, WNID like n01498041"
    under: ClassVar[Sequence[str]] = ("imagenet-a", ".")
    count: ClassVar[int] = 7_500
