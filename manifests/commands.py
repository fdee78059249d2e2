"""`vlpipe manifest`: build, from-table, check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlpipe.foundation.errors import UsageError, VlpipeError

if TYPE_CHECKING:
    from vlpipe.manifests.manifest import Manifest

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
out_option = click.option("--out", required=True, type=FOLDER, help="The manifest's folder.")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace another manifest in that folder.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")


@click.command(short_help="Build the manifest of a published data set.")
@click.argument("name")
@click.option("--root", type=FOLDER, help="The folder that the data set was unpacked into.")
@out_option
@click.option("--config", type=FILE, help="Settings in a TOML file.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="One setting, read as TOML.")
@click.option("--mnist", type=FOLDER, help="MNIST's idx files; the same as --set mnist='\"DIR\"'.")
@overwrite_option
@json_option
def build(
    name: str,
    root: Path | None,
    out: Path,
    config: Path | None,
    sets: tuple[str, ...],
    mnist: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Build the manifest of the data set NAME (`vlpipe list datasets`; settings: `vlpipe list datasets NAME`)."""
    from vlpipe.foundation.config import parse_sets, read_toml
    from vlpipe.foundation.progress import progress
    from vlpipe.manifests.build import build as build_manifest

    layers: list[dict[str, Any]] = [read_toml(config) if config else {}, parse_sets(sets)]
    layers.append({"mnist": str(mnist)} if mnist else {})
    notes: list[str] = []
    with progress(f"{name}: rows", None) as advance:
        made = build_manifest(name, root, out, *layers, overwrite=overwrite, advance=advance, note=notes.append)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    _finish(made, as_json)


@click.command("from-table", short_help="Make a manifest of a CSV, JSON lines or Parquet table.")
@click.argument("table", required=False, type=FILE)
@click.option("--images", type=FILE, help="A table of images, instead of TABLE.")
@click.option("--texts", type=FILE, help="A table of texts, instead of TABLE.")
@out_option
@click.option("--image-root", type=FOLDER, help="What paths are relative to; default: the table's folder.")
@click.option("--column", "columns", multiple=True, metavar="NAME=COLUMN", help="For example text=caption.")
@click.option("--drop-blank", is_flag=True, help="Leave out texts that are missing, null or blank.")
@click.option("--name", help="Default: the table's file name.")
@click.option("--source", default="", help="Where the rows are from.")
@click.option("--licence", default="unknown", show_default=True, help="The terms of the data.")
@overwrite_option
@json_option
def from_table(
    table: Path | None,
    images: Path | None,
    texts: Path | None,
    out: Path,
    columns: tuple[str, ...],
    drop_blank: bool,
    as_json: bool,
    **described: Any,
) -> None:
    """Make a manifest from TABLE (.csv, .tsv, .jsonl, .parquet): a row is an image path and a caption (or a list).

    Columns that are read where they are there: path (or image), text (or caption, captions), image_id, text_id,
    split, label, role, source_text_id, group_id, attributes. An image without an id is named by its path as it is
    written, a text IMAGE#0, IMAGE#1, ...
    """
    from vlpipe.manifests.build import build_from_tables
    from vlpipe.manifests.tables import parse_renames

    if (table is None) == (images is None and texts is None):
        raise UsageError("give either TABLE, or --images FILE, --texts FILE or both")
    made, notes = build_from_tables(
        table or images, table or texts, out, renames=parse_renames(columns), drop_blank=drop_blank, **described
    )
    for note in notes:
        click.echo(f"note: {note}", err=True)
    _finish(made, as_json)


@click.command(short_help="Check digest, files, splits and texts of a manifest.")
@click.argument("folder", type=FOLDER)
@click.option("--images", "every_image", is_flag=True, help="Read every image's header, not a sample of 100.")
@json_option
def check(folder: Path, every_image: bool, as_json: bool) -> None:
    """Check digest, files, splits and texts of the manifest in FOLDER; exit 1 where something is wrong."""
    import json

    from vlpipe.foundation.progress import progress
    from vlpipe.manifests.check import check as check_manifest
    from vlpipe.manifests.manifest import Manifest

    opened = Manifest.open(folder)
    with progress("images", None) as advance:
        report = check_manifest(opened, every_image=every_image, advance=advance)
    if as_json:
        click.echo(json.dumps({"digest": opened.digest, **report.numbers, "errors": report.errors}))
    else:
        click.echo("\n".join(f"{name:26} {value:,}" for name, value in report.numbers.items()))
        for error in report.errors[1:]:
            click.echo(f"error: {error}", err=True)
    if report.errors:
        raise VlpipeError(f"manifest '{folder}': {report.errors[0]}")


def _finish(made: Manifest, as_json: bool) -> None:
    """One line on stdout; images without a file are said on stderr, an error where it is all of them."""
    import json

    from vlpipe.manifests.check import missing_images, shown

    missing = missing_images(made)
    facts = made.description.counts | {"missing_images": len(missing)}
    splits = made.description.splits
    if as_json:
        click.echo(
            json.dumps(
                {"folder": str(made.folder), "name": made.name, "digest": made.digest} | facts | {"splits": splits}
            )
        )
    else:
        parts = ", ".join(
            f"{name} {count:,}" for name, count in splits["images" if splits["images"] else "texts"].items()
        )
        click.echo(
            f"{made.name}: {facts['images']:,} images, {facts['texts']:,} texts"
            + (f", {facts['regions']:,} regions" if "regions" in facts else "")
            + (f" ({parts})" if parts else "")
            + f", digest {made.digest[:12]}, in {made.folder}"
        )
    if missing:
        images = facts["images"]
        words = f"{len(missing):,} of {images:,} image files are not under '{made.image_root}': {shown(missing)}"
        if (
            len(missing) == images and made.description.settings.get("absent") != "keep"
        ):  # "keep": it was asked for
            raise VlpipeError(f"{words}; the manifest is written, but no image can be encoded: give --image-root")
        click.echo(f"warning: {words}", err=True)
