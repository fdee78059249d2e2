"""ImageNetV2: three new test sets for ImageNet's 1,000 classes.

Recht, Roelofs, Schmidt and Shankar, "Do ImageNet Classifiers Generalize to ImageNet?", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from vlpipe.manifests.imagenet import ImagenetConfig, WordnetFolders


class ImagenetV2Config(ImagenetConfig):
    """Which of the three sets."""

    variant: Literal["matched-frequency", "threshold0.7", "top-images"] = "matched-frequency"


class ImagenetV2(WordnetFolders):
    """`imagenetv2-VARIANT-format-val/N/*.jpeg`, N the class index 0 to 999: 10,000 pictures, ten each.

    Labels are the WordNet ids of these indices, as in the rest of the family; ids are `N/FILE`.
    """

    Config = ImagenetV2Config
    config: ImagenetV2Config
    title: ClassVar[str] = "ImageNetV2"
    source: ClassVar[str] = "https://github.com/modestyachts/ImageNetV2"
    licence: ClassVar[str] = "images: their owners' terms (Flickr)"
    count: ClassVar[int] = 10_000  # of each variant
    expected: ClassVar[str] = (
        "imagenetv2-VARIANT-format-val/ with folders 0 to 999, VARIANT the setting 'variant': "
        "matched-frequency, threshold0.7 or top-images"
    )

    def places(self, given: Path) -> Sequence[str]:
        """The variant's folder, below or itself: a folder of another name may be another variant's."""
        name = f"imagenetv2-{self.config.variant}-format-val"
        return (name, ".") if given.resolve().name == name else (name,)

    def class_folders(self) -> Mapping[str, str]:
        """Class indices."""
        return {str(index): label for index, label in enumerate(self.names)}
