"""`vlpipe manifest views` and `vlpipe manifest negatives`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Mapping

    from vlpipe.derive.filters import Nearness
    from vlpipe.derive.language import Remembered
    from vlpipe.foundation.progress import Advance
    from vlpipe.manifests.contracts import Row
    from vlpipe.manifests.manifest import Manifest

    Make = Callable[[Manifest, Advance], Iterator[Row]]

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
folder_argument = click.argument("folder", type=FOLDER)
out_option = click.option("--out", required=True, type=FOLDER, help="The folder of the new manifest.")
config_option = click.option("--config", type=FILE, help="Settings in a TOML file.")
set_option = click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="One setting, read as TOML.")
name_option = click.option("--name", help="Default: the old name with what was added.")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace another manifest in that folder.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")


@click.command(short_help="Add views of the captions: less said, or said otherwise.")
@folder_argument
@out_option
@click.option(
    "--view", "views", multiple=True, metavar="NAME",
    help="core, deletion, paraphrase or back_translation; may repeat.  [default: core]",
)  # fmt: skip
@click.option("--model", type=FOLDER, help="A local language model (transformers), for what is written anew.")
@click.option("--encoder", help="SPEC of a text encoder: views far from their caption are turned down.")
@click.option(
    "--encoder-set", "encoder_sets", multiple=True, metavar="KEY=VALUE", help="A setting of the encoder."
)
@click.option("--device", default="auto", show_default=True, help="Where the language model runs.")
@click.option("--batch-size", default=8, show_default=True, type=click.IntRange(min=1), help="Of the model.")
@click.option(
    "--cache", default=Path("cache"), show_default=True, type=FOLDER, envvar="VLPIPE_CACHE",
    help="Where answers and cosines are kept, in derived.sqlite.",
)  # fmt: skip
@config_option
@set_option
@name_option
@overwrite_option
@json_option
def views(
    folder: Path, out: Path, views: tuple[str, ...], config: Path | None, sets: tuple[str, ...], **options: Any
) -> None:
    """Add views of every caption of the manifest in FOLDER to a copy of it; texts get the roles view:NAME.

    core leaves out attributes and counts; deletion takes out 10, 30, 50 and 70 % of the attributes, relations and
    counts (one view each: view:delete-counts-30); paraphrase and back_translation need --model and --encoder.
    Settings: seed, shares, delete, spans (tagger or model), tries, min_words, max_words, min_cosine.
    """
    from vlpipe.derive.settings import ViewsConfig
    from vlpipe.derive.tagging import identity
    from vlpipe.derive.views import Views
    from vlpipe.foundation.config import parse_sets, read_toml, resolve

    layers = [read_toml(config) if config else {}, parse_sets(sets), {"views": list(views)} if views else {}]
    settings = resolve(ViewsConfig, *layers)
    maker = Views(settings, _model(options) if settings.needs_model else None, _nearness(options))
    said = {"views": settings.model_dump(mode="json"), "tagger": identity(), **_identities(maker)}
    _grow(folder, out, maker.rows, maker.told, said, "views", options)
    if options["model"] and not settings.needs_model:
        click.echo(
            "note: --model is not asked; --set spans='\"model\"' lets it find what deletion takes out", err=True
        )
    if maker.nearness is None and set(settings.views) - {"deletion"}:
        click.echo(
            "note: no cosine to the caption was asked; give --encoder SPEC to turn down views by it", err=True
        )


@click.command(short_help="Add hard negatives of the captions: one thing changed.")
@folder_argument
@out_option
@click.option("--per-caption", type=click.IntRange(min=1), help="At most so many a caption.  [default: 1]")
@config_option
@set_option
@name_option
@overwrite_option
@json_option
def negatives(
    folder: Path, out: Path, per_caption: int | None, config: Path | None, sets: tuple[str, ...], **options: Any
) -> None:
    """Add hard negatives of every caption of the manifest in FOLDER to a copy of it, with role hard_negative.

    Rules: replace_obj, replace_att, replace_rel, swap_obj, swap_att, add_obj, add_att; words come from the
    manifest's own captions. Settings: rules, per_caption, seed, read.
    """
    from vlpipe.derive.negatives import CODE, Negatives, NegativesConfig
    from vlpipe.derive.tagging import identity
    from vlpipe.foundation.config import parse_sets, read_toml, resolve

    given = {"per_caption": per_caption} if per_caption else {}
    settings = resolve(NegativesConfig, read_toml(config) if config else {}, parse_sets(sets), given)
    maker = Negatives(settings)
    said = {"negatives": settings.model_dump(mode="json") | {"code": CODE}, "tagger": identity()}
    _grow(folder, out, maker.rows, maker.told, said, "negatives", options)


def _model(options: Mapping[str, Any]) -> Remembered | None:
    from vlpipe.derive.language import LocalModel, Remembered

    if options["model"] is None:
        return None
    return Remembered(LocalModel(options["model"], options["device"], options["batch_size"]), _memory(options))


def _nearness(options: Mapping[str, Any]) -> Nearness | None:
    from vlpipe.derive.filters import Nearness
    from vlpipe.foundation.config import parse_sets

    if options["encoder"] is None:
        return None
    return Nearness(options["encoder"], parse_sets(options["encoder_sets"]), _memory(options))


def _memory(options: Mapping[str, Any]) -> Any:
    from vlpipe.derive.memory import Memory

    return Memory(options["cache"] / "derived.sqlite")


def _identities(maker: Any) -> dict[str, str]:
    parts = {"model": maker.model, "encoder": maker.nearness}
    return {name: part.identity for name, part in parts.items() if part is not None}


def _grow(
    folder: Path,
    out: Path,
    make: Make,
    told: Counter[str],
    settings: Mapping[str, Any],
    what: str,
    options: Mapping[str, Any],
) -> None:
    """Write the new manifest; one line on stdout, what the rules did on stderr."""
    import json

    from vlpipe.derive.growing import grow
    from vlpipe.foundation.progress import progress
    from vlpipe.manifests.manifest import Manifest

    manifest = Manifest.open(folder)
    with progress(what, None) as advance:
        made = grow(
            manifest, out, make(manifest, advance), name=options["name"], suffix=what, settings=settings,
            overwrite=options["overwrite"],
        )  # fmt: skip
    added = made.count("text") - manifest.count("text")
    if options["as_json"]:
        facts = {"folder": str(made.folder), "name": made.name, "digest": made.digest, "added": added}
        click.echo(json.dumps(facts | {"told": dict(sorted(told.items()))}))
        return
    click.echo(
        f"{made.name}: {added:,} {what} of {told['captions']:,} captions, {made.count('text'):,} texts in all, "
        f"digest {made.digest[:12]}, in {made.folder}"
    )
    click.echo("".join(f"  {name:46} {count:,}\n" for name, count in sorted(told.items())), err=True, nl=False)
