"""Folders as publishers pack them, read in the same order everywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from vlpipe.foundation.errors import VlpipeError

PICTURES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
)
PACKED = "__MACOSX"  # what macOS adds to zip archives


def subfolders(folder: Path) -> list[str]:
    """Names of the folders in it, sorted; hidden ones and macOS's __MACOSX are left out."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and is_shown(entry.name))


def pictures_in(folder: Path) -> Iterator[str]:
    """Paths, relative to `folder`, of the pictures in it and below: sorted in each folder, its own before those of
    its subfolders. Files with another ending, and hidden ones, are left out. Links to folders are followed.

    Raises `VlpipeError` for a link to a folder that it lies in, and for a folder that cannot be read.
    """
    for place, folders, files in os.walk(folder, followlinks=True, onerror=_refuse):
        folders[:] = sorted(name for name in folders if is_shown(name))
        for name in folders:
            _check_link(Path(place, name))
        for name in sorted(files):
            if is_picture(name):
                yield Path(place, name).relative_to(folder).as_posix()


def is_shown(name: str) -> bool:
    """Whether a name is neither hidden nor what macOS leaves behind (`._a.jpg`, `__MACOSX`)."""
    return not name.startswith(".") and name != PACKED


def is_picture(name: str) -> bool:
    """Whether a file's name ends like a picture's, in any case."""
    return is_shown(name) and os.path.splitext(name)[1].lower() in PICTURES  # noqa: PTH122


def _check_link(folder: Path) -> None:
    """A walk through a link to a folder above would never end."""
    if folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve()):
        raise VlpipeError(f"'{folder}' is a link to '{folder.resolve()}', which it lies in; remove the link")


def _refuse(error: OSError) -> NoReturn:
    raise VlpipeError(
        f"'{error.filename}' cannot be read: {error.strerror}; its pictures would be left out"
    ) from None
