"""Tables and numbers for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

PIPE_WIDTH = 240  # characters, where there is no terminal to ask: nothing is cut or folded early


def print_table(table: Table) -> None:
    """A table as wide as the terminal; wide enough for everything in a file or a pipe."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    console.print(table)


def size_words(count: float) -> str:
    """A number of bytes: 12 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
