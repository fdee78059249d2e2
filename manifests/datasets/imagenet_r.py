"""ImageNet-R: art, cartoons, toys and other renditions of 200 of ImageNet's classes.

Hendrycks et al., "The Many Faces of Robustness: A Critical Analysis of Out-of-Distribution Generalization",
ICCV 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from vlpipe.manifests.contracts import Row
from vlpipe.manifests.imagenet import WordnetFolders


class ImagenetR(WordnetFolders):
    """`imagenet-r/WNID/*.jpg`: 30,000 pictures of 200 classes as published.

    The kind of rendition (art, cartoon, ...), with which a file's name begins, is the attribute `rendition`.
    Prompts are of these 200 classes only.
    """

    title: ClassVar[str] = "ImageNet-R"
    source: ClassVar[str] = "https://github.com/hendrycks/imagenet-r"
    expected: ClassVar[str] = "imagenet-r/WNID/*.jpg, 200 classes, WNID like n01443537"
    under: ClassVar[Sequence[str]] = ("imagenet-r", ".")
    count: ClassVar[int] = 30_000

    def row(self, split: str, label: str, path: str) -> Row:
        """One picture's row, with its rendition."""
        rendition, mark, _ = Path(path).name.partition("_")
        more = {"rendition": rendition} if mark else {}
        return self.classes.image(path, path, split, label, **more)
