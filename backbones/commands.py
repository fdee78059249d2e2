"""`vlpipe train-backbone`: train an encoder's towers on a manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from vlpipe.backbones.settings import LoopConfig


class Checked(click.Command):
    """Its settings are checked where its words are parsed, so that a recipe can know before any work."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; raises `VlpipeError` of a kind for settings that are wrong or do not go together."""
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            from vlpipe.backbones.train import settled

            given, objective = ctx.params, ctx.params["objective"]
            settled(objective, given["spec"], _config(objective, given["config_path"], given["sets"]))
        return rest


def _config(objective: str, path: str | None, sets: tuple[str, ...]) -> LoopConfig:
    """The loop's settings: the file, then --set."""
    from pathlib import Path

    from vlpipe.backbones.contracts import SHELF
    from vlpipe.backbones.settings import LoopConfig
    from vlpipe.foundation.config import parse_sets, read_toml, resolve
    from vlpipe.foundation.errors import UsageError

    given = [*([read_toml(Path(path))] if path else []), parse_sets(sets)]
    own = SHELF.load(objective).Config.model_fields.keys() - LoopConfig.model_fields.keys()
    misplaced = sorted(own & {name for layer in given for name in layer})
    if misplaced:
        name = misplaced[0]
        raise UsageError(f"'{name}' is a setting of the objective '{objective}': --set 'objective={{{name}=...}}'")
    return resolve(LoopConfig, *given)


@click.command("train-backbone", cls=Checked)
@click.argument("objective")
@click.option("--manifest", "manifest_path", required=True, metavar="DIR", help="Manifest to train on.")
@click.option(
    "--encoder", "spec", required=True, metavar="SPEC",
    help="Encoder whose towers learn; for an objective on cached images its text tower: SPEC[#OUTPUT][::RUN...].",
)  # fmt: skip
@click.option("--source", "sources", multiple=True, metavar="image=SPEC#OUTPUT[::RUN]", help="Cached images.")
@click.option(
    "--cache", default="cache", show_default=True, metavar="DIR", envvar="VLPIPE_CACHE", help="Folder of features."
)
@click.option(
    "--runs", default="runs", show_default=True, metavar="DIR", envvar="VLPIPE_RUNS", help="Folder of heads' runs."
)
@click.option("--out", required=True, metavar="DIR", help="Folder of the run; continues where it was interrupted.")
@click.option("--config", "config_path", metavar="TOML", help="Settings.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="One setting, in TOML's grammar.")
@click.option("--json", "as_json", is_flag=True, help="Print the last line of the log as JSON.")
def train_backbone(
    objective: str,
    manifest_path: str,
    spec: str,
    out: str,
    sources: tuple[str, ...],
    cache: str,
    runs: str,
    config_path: str | None,
    sets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Train whole towers with OBJECTIVE on a manifest's images and captions.

    With tevi the text tower alone learns, beside cached images; its texts are then extracted, and the same command
    again makes the run of the mask. `vlpipe list objectives OBJECTIVE` tells its settings and the training's.
    """
    import json
    from pathlib import Path

    from vlpipe.backbones.live import Places
    from vlpipe.backbones.train import train

    config, places = _config(objective, config_path, sets), Places(sources, Path(cache), Path(runs))
    result = train(objective, Path(manifest_path), spec, Path(out), config, places)
    if as_json:
        click.echo(json.dumps(result))
        return
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in result.items() if isinstance(value, int | float))
    click.echo(f"{result['weights']}: {numbers}")
    if "encoder" in result:
        click.echo(f"encoder {result['encoder']}")
    if "run" in result:
        click.echo(f"run {result['run']}")
    if "then" in result:
        click.echo(f"next: {result['then']}\nthen this command again, for the run of the head")
