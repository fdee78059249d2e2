"""ImageNet-Sketch: black and white sketches of ImageNet's 1,000 classes.

Wang, Ge, Lipton and Xing, "Learning Robust Global Representations by Penalizing Local Predictive Power",
NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from vlpipe.manifests.imagenet import WordnetFolders


class ImagenetSketch(WordnetFolders):
    """`sketch/WNID/*.JPEG`: 50 pictures a class as the paper says; the archive that is published holds 50,889."""

    title: ClassVar[str] = "ImageNet-Sketch"
    source: ClassVar[str] = "https://github.com/HaohanWang/ImageNet-Sketch"
    expected: ClassVar[str] = "sketch/WNID/*.JPEG, WNID like n01440764"
    under: ClassVar[Sequence[str]] = ("sketch", "ImageNet-Sketch/sketch", ".")
    count: ClassVar[int] = 50_889
