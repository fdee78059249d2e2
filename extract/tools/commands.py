"""`vlpipe cache verify` and `import`: what of the `cache` group needs an encoder or a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlpipe.foundation.errors import UsageError, VlpipeError

if TYPE_CHECKING:
    from vlpipe.extract.importing import Imported

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(short_help="Check every file's checksum and name the damaged rows.")
@click.argument("stores", nargs=-1, metavar="[STORE]...", type=FOLDER)
@click.option(
    "--cache", default=Path("cache"), show_default=True, type=FOLDER, envvar="VLPIPE_CACHE",
    help="Check all stores of this folder, where no STORE is named.",
)  # fmt: skip
@click.option("--manifest", type=FOLDER, help="Find pictures and texts that are not what was encoded, too.")
@click.option(
    "--recompute", "count", default=0, metavar="N", type=click.IntRange(min=0),
    help="Encode N rows of each store again and compare; needs --manifest and --encoder.",
)  # fmt: skip
@click.option("--encoder", metavar="SPEC", help="What made the stores that --recompute compares.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="A setting of the encoder; may repeat.")
@click.option(
    "--tolerance", type=click.FloatRange(min=0),
    help="Largest distance to a row encoded again, as a share of its norm; default: 2e-3, for float32 1e-4.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, with all ids of damaged rows.")
def verify(stores: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Check every file of every store against what was committed, and name the rows that are damaged.

    Nothing is written. The same `vlpipe extract` as before then encodes only these rows. Exit code 1 where
    anything is damaged.
    """
    import json

    from vlpipe.cache_store.errors import DamagedError
    from vlpipe.extract.tools.verifying import check

    paths, checks = _what_to_check(stores, options)
    reports = []
    for path in paths:
        report = check(path, checks)
        reports.append(report)
        for line in () if as_json else report.lines():
            click.echo(line)
        for note in report.notes:
            click.echo(f"note: {path}: {note}", err=True)
    if as_json:
        click.echo(json.dumps([report.record() for report in reports], indent=2, ensure_ascii=False))
    damaged = sum(bool(report.damage) for report in reports)
    if damaged:
        raise DamagedError(
            f"{damaged} of {len(reports)} stores are damaged or cannot be read; what and where stands above"
        )


def _what_to_check(stores: tuple[Path, ...], options: dict[str, Any]) -> tuple[list[Path], Any]:
    """The stores, and what is looked at beside checksums; of a whole cache, only the encoder's are recomputed."""
    import os

    from vlpipe.cache_store.commands import refuse_other_folder
    from vlpipe.cache_store.stores import store_paths
    from vlpipe.extract.load import load_encoder
    from vlpipe.extract.tools.verifying import Checks
    from vlpipe.foundation.config import parse_sets
    from vlpipe.manifests.manifest import Manifest

    spec, count, folder = options["encoder"], options["count"], options["manifest"]
    if count and not (spec and folder):
        raise UsageError(f"--recompute {count} needs --manifest DIR and --encoder SPEC, to encode rows again")
    if (spec or options["sets"] or options["tolerance"] is not None) and not count:
        raise UsageError("--encoder, --set and --tolerance are for --recompute N; give that, too")
    if count and not stores:
        raise UsageError(
            f"--recompute {count} needs the STORE that the encoder made; `vlpipe cache ls` lists them"
        )
    manifest = Manifest.open(folder) if folder else None
    encoder = load_encoder(spec, parse_sets(options["sets"])) if count else None
    for store in stores:
        refuse_other_folder(store)
    paths = list(stores) or store_paths(options["cache"])
    return paths, Checks(manifest, encoder, count, options["tolerance"], os.cpu_count() or 1)


@click.command("import", short_help="Make a store of features from an .npy file.")
@click.argument("files", nargs=-1, required=True, metavar="FILE.npy...", type=FILE)
@click.option(
    "--ids", "id_files", required=True, multiple=True, metavar="FILE", type=FILE,
    help="Whose rows they are, in order: .txt (one a line), .json (a list) or .parquet; one for each FILE.npy.",
)  # fmt: skip
@click.option("--id-column", metavar="NAME", help="Column of a .parquet; default: id, image_id or text_id.")
@click.option("--manifest", required=True, type=FOLDER, help="Folder of the manifest whose ids they are.")
@click.option("--side", required=True, type=click.Choice(["image", "text"]))
@click.option(
    "--as",
    "name",
    required=True,
    metavar="NAME",
    help="Name of the store: what `vlpipe train-head` takes for --encoder, and in --source.",
)
@click.option("--output", default="features", show_default=True, help="Name of the output.")
@click.option("--dtype", default="float16", show_default=True, type=click.Choice(["float16", "float32"]))
@click.option("--index", type=int, help="Take this entry of an additional first axis.")
@click.option("--source", default="", metavar="TEXT", help="What made them; the same words for what may be mixed.")
@click.option("--allow-missing", is_flag=True, help="Keep the manifest's ids without a row as failed.")
@click.option(
    "--cache", default=Path("cache"), show_default=True, type=FOLDER, envvar="VLPIPE_CACHE",
    help="Folder of the stores.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of a line.")
def import_(files: tuple[Path, ...], id_files: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Make a store of features that other programs computed; heads train on it as on any other.

    FILE.npy holds a row for each id; several files are taken one after the other. Rows are matched to the
    manifest's ids, in any order. Run again it goes on where it stopped, and refuses other rows (exit code 4).
    """
    import json
    from dataclasses import asdict

    from vlpipe.extract.importing import import_rows
    from vlpipe.manifests.manifest import Manifest

    features, ids = _read(files, id_files, options.pop("id_column"), options.pop("index"))
    options["manifest"] = Manifest.open(options["manifest"])
    made = import_rows(features, ids, **options)
    if made.surplus:
        click.echo(
            f"note: {made.surplus:,} of the given ids are not in the manifest, first {list(made.surplus_first)}",
            err=True,
        )
    if made.missing:
        click.echo(
            f"note: {made.missing:,} {made.side}s of the manifest have no row and count as failed, first "
            f"{list(made.missing_first)}",
            err=True,
        )
    click.echo(json.dumps(asdict(made), ensure_ascii=False) if as_json else _line(options["name"], made))


def _read(files: tuple[Path, ...], id_files: tuple[Path, ...], column: str | None, index: int | None) -> Any:
    """All features, and all ids, as one; each file is compared with its ids, so that an error names it."""
    import pyarrow as pa

    from vlpipe.extract.outside import Stacked, map_features, read_id_file

    if len(files) != len(id_files):
        raise UsageError(f"{len(files)} FILE.npy and {len(id_files)} --ids; expected one --ids for each")
    arrays, lists = [], []
    for file, id_file in zip(files, id_files, strict=True):
        array, ids = map_features(file, index), read_id_file(id_file, column)
        if array.ndim == 0 or len(array) != len(ids):
            hint = "; take one with --index" if array.ndim > 1 and array.shape[1] == len(ids) else ""
            raise VlpipeError(f"'{file}' has the shape {array.shape}, '{id_file}' {len(ids)} ids{hint}")
        arrays.append(array)
        lists.append(ids)
    return Stacked(arrays), pa.concat_arrays(lists)


def _line(name: str, made: Imported) -> str:
    """`clip image features: imported 500 rows, 0 were there; 500 ok -> STORE`."""
    counts = {"ok": made.rows - made.missing, "failed": made.missing, "with a zero vector": made.zero_norm}
    shown = ", ".join(f"{number:,} {word}" for word, number in counts.items() if number or word == "ok")
    done = f"imported {made.imported:,} rows, {made.already:,} were there"
    return f"{name} {made.side} {made.output}: {done}; {shown} -> {made.store}"
