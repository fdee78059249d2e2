"""Folders as publishers pack them, read in the same order everywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

PICTURES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
)


def subfolders(folder: Path) -> list[str]:
    """Names of the folders in it, sorted; hidden ones are left out."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def pictures_in(folder: Path) -> Iterator[str]:
    """Paths, relative to `folder`, of the pictures in it and below: sorted in each folder, its own before those of
    its subfolders. Files with another ending, and hidden ones, are left out. Links to folders are followed.
    """
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if is_picture(name):
                yield Path(place, name).relative_to(folder).as_posix()


def is_picture(name: str) -> bool:
    """Whether a file's name ends like a picture's, in any case."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in PICTURES  # noqa: PTH122
