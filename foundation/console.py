"""Tables on stdout."""

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
