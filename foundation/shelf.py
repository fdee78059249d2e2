"""A shelf is a folder where one file is one thing, found by the file's name."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from vlpipe.foundation.errors import UnknownNameError, UsageError


class Shelf:
    """The things in one package, by file name; nothing is imported until it is loaded.

    The file `open_clip.py` holds the class `OpenClip`: the file's name in capitalised words.
    """

    def __init__(self, package: str, what: str) -> None:
        self.package = package
        self.what = what

    def names(self) -> list[str]:
        """File names on the shelf, sorted, without importing any of them."""
        folder = importlib.import_module(self.package)
        return sorted(m.name for m in pkgutil.iter_modules(folder.__path__) if not m.name.startswith("_"))

    def load(self, name: str) -> type[Any]:
        """The class of one file, or of `module.path:Class` from outside.

        Raises `UnknownNameError` for a name that is not on the shelf, `UsageError` for an outside
        name that cannot be imported.
        """
        if ":" in name:
            return self._outside(name)
        if name not in self.names():
            raise UnknownNameError(self.what, name, self.names())
        module = importlib.import_module(f"{self.package}.{name}")
        found: type[Any] = getattr(module, class_name(name))
        return found

    def _outside(self, name: str) -> type[Any]:
        module_name, _, attribute = name.partition(":")
        try:
            found = getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError, ValueError, SyntaxError) as error:
            raise UsageError(
                f"{self.what} '{name}' cannot be imported ({error}); expected importable.module:Class"
            ) from error
        if not isinstance(found, type):
            raise UsageError(f"{self.what} '{name}' is not a class; expected importable.module:Class")
        return found


def class_name(file_name: str) -> str:
    """`open_clip` -> `OpenClip`: the class that a shelf file must hold."""
    return "".join(part.capitalize() for part in file_name.split("_"))
