"""`vlpipe cache`: what the cache holds."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from vlpipe.cache_store.stores import StoreInfo

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


@click.group()
def cache() -> None:
    """Look at the features that are cached."""


@cache.command()
@click.option(
    "--cache",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("cache"),
    envvar="VLPIPE_CACHE",
    show_default=True,
    help="The cache folder.",
)
@as_json
def ls(folder: Path, as_json: bool) -> None:
    """List all stores: encoder, outputs, rows, size."""
    from vlpipe.cache_store.stores import list_stores

    stores = list_stores(folder)
    if as_json:
        _print_json([_record(store) for store in stores])
    else:
        _print_table(stores)


@cache.command()
@click.argument("path", type=click.Path(path_type=Path))
@as_json
def show(path: Path, as_json: bool) -> None:
    """Show one store: counts, and every output's fingerprint."""
    from vlpipe.cache_store.stores import store_info

    record = _record(store_info(path))
    if as_json:
        _print_json(record)
        return
    for name, value in record.items():
        if name not in ("outputs", "problem"):
            click.echo(f"{name}: {value}")
    for name, output in record["outputs"].items():
        click.echo(f"output {name}:")
        for field, value in {**output.pop("fingerprint"), **output}.items():
            click.echo(f"  {field}: {value}")


def _record(store: StoreInfo) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(store), "path": str(store.path)}


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def _print_table(stores: list[StoreInfo]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from vlpipe.foundation.console import print_table

    table = Table(box=box.SIMPLE)
    shown = [name for name in ("cut", "absent") if any(getattr(store, name) for store in stores)]
    for name in ("encoder", "side", "outputs", "manifest"):
        table.add_column(name, overflow="fold", min_width=7)
    for name in ("rows", "ok", "failed", *shown, "size", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    for store in stores:
        cells = [store.path.stem] if store.problem else _cells(store, shown)
        table.add_row(*map(Text, cells))  # not as rich's markup, which brackets in a name would be
    print_table(table)
    for store in stores:
        if store.problem:
            click.echo(store.problem, err=True)


def _cells(store: StoreInfo, shown: list[str]) -> list[str]:
    """One store's cells; its encoder is named as the folder is, `show` gives it in full."""
    encoder, _, side = store.path.stem.rpartition(".")
    counts = (store.rows, store.ok, store.failed, *(getattr(store, name) for name in shown))
    numbers = [f"{count:,}" for count in counts]
    names = [encoder, side, ", ".join(store.outputs), store.manifest[:12]]
    return [*names, *numbers, _size(store.bytes), _age(store.created)]


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _age(created: str) -> str:
    hours = (datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds() / 3600
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"
