"""`vlpipe cache ls`, `show` and `export`: what a cache holds."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlpipe.foundation.errors import UsageError

if TYPE_CHECKING:
    from vlpipe.cache_store.stores import StoreInfo

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


@click.command(short_help="List all stores: encoder, outputs, rows, size.")
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


@click.command(short_help="Show one store: counts, and every output's fingerprint.")
@click.argument("path")
@as_json
def show(path: str, as_json: bool) -> None:
    """Show one store, a folder or a URL such as s3://bucket/...: counts, and every output's fingerprint."""
    from vlpipe.cache_store.stores import store_info

    refuse_other_folder(path)
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


@click.command(short_help="Write an output's rows to safetensors, npz or Parquet.")
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--output", help="Needed where the store has several.")
@click.option(
    "--out", "file", required=True, metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="The file; its suffix says the format: .safetensors, .npz or .parquet.",
)  # fmt: skip
@click.option("--dtype", type=click.Choice(["float32"]), help="Default: as the store keeps it.")
@click.option("--overwrite", is_flag=True, help="Replace the file where there is one.")
@as_json
def export(store: Path, as_json: bool, **options: Any) -> None:
    """Write the usable rows of one output of STORE to a file, in row order, with their ids.

    A .safetensors file has one tensor, named as the output, and the ids as a JSON list in its metadata "ids"; an
    .npz has the arrays features, ids and status (1 ok, 3 cut); a .parquet has the columns id, status and feature.
    Manifest digest and fingerprint go along as JSON: metadata (or array) "vlpipe".
    """
    from dataclasses import asdict

    from vlpipe.cache_store.export import export_features
    from vlpipe.foundation.console import size_words
    from vlpipe.foundation.progress import progress

    refuse_other_folder(store)
    with progress("rows", None) as advance:
        made = export_features(store, **options, advance=advance)
    if as_json:
        _print_json(asdict(made))
        return
    left = f", {made.left_out:,} rows that are not usable are left out" if made.left_out else ""
    shape = " x ".join(map(str, made.shape)) or "1"
    click.echo(f"{made.rows:,} rows of {shape} {made.dtype}{left} -> {made.file} ({size_words(made.bytes)})")


def refuse_other_folder(path: str | Path) -> None:
    """Raise `UsageError` for a folder that never was a store, such as a cache's: its metadata is not lost."""
    folder = Path(path)
    if folder.is_dir() and folder.suffix != ".zarr" and not (folder / "zarr.json").exists():
        raise UsageError(
            f"'{path}' is no store but another folder; expected one such as 'cache/0123456789ab/NAME.image.zarr': "
            "`vlpipe cache ls --cache DIR` lists those of a cache"
        )


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
        cells = [store.path.name.removesuffix(".zarr")] if store.problem else _cells(store, shown)
        table.add_row(*map(Text, cells))  # not as rich's markup, which brackets in a name would be
    print_table(table)
    for store in stores:
        if store.problem:
            click.echo(store.problem, err=True)


def _cells(store: StoreInfo, shown: list[str]) -> list[str]:
    """One store's cells; its encoder is named as the folder is, `show` gives it in full."""
    from vlpipe.foundation.console import size_words

    encoder, _, side = store.path.name.removesuffix(".zarr").rpartition(".")
    counts = (store.rows, store.ok, store.failed, *(getattr(store, name) for name in shown))
    numbers = [f"{count:,}" for count in counts]
    names = [encoder, side, ", ".join(_outputs(store)), store.manifest[:12]]
    return [*names, *numbers, size_words(store.bytes), _age(store.created)]


def _outputs(store: StoreInfo) -> list[str]:
    """The outputs' names, with the number of rows behind one that has fewer than another."""
    most = max((output.committed_rows for output in store.outputs.values()), default=0)
    return [
        name if output.committed_rows == most else f"{name} ({output.committed_rows:,} rows)"
        for name, output in store.outputs.items()
    ]


def _age(created: str) -> str:
    hours = (datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds() / 3600
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"
