"""Pictures and texts of a manifest, for figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from vlpipe.manifests.manifest import Manifest

SIDE = 256  # pixels that a picture of a figure has at most


@dataclass(frozen=True)
class Shown:
    """A manifest's pictures by image id."""

    root: Path
    paths: Mapping[str, str]

    @classmethod
    def of(cls, folder: Path) -> Shown:
        """Those of a manifest's folder."""
        manifest = Manifest.open(folder)
        images = manifest.table("image", ["image_id", "path"])
        return cls(
            manifest.image_root,
            dict(zip(images["image_id"].to_pylist(), images["path"].to_pylist(), strict=True)),
        )

    def picture(self, image_id: str) -> npt.NDArray[Any]:
        """Upright, RGB, (height, width, 3); grey where it cannot be read, which spoils no figure."""
        try:
            with Image.open(self.root / self.paths[image_id]) as opened:
                upright = ImageOps.exif_transpose(opened).convert("RGB")
        except (OSError, KeyError, SyntaxError):
            upright = Image.new("RGB", (8, 8), (200, 200, 200))
        upright.thumbnail((SIDE, SIDE))
        return np.asarray(upright)


def texts_of(folder: Path) -> dict[str, str]:
    """Texts by id."""
    texts = Manifest.open(folder).table("text", ["text_id", "text"])
    return dict(zip(texts["text_id"].to_pylist(), texts["text"].to_pylist(), strict=True))
