"""`vlpipe recipe`: list, show, run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from vlpipe.foundation.errors import UsageError

if TYPE_CHECKING:
    from vlpipe.evaluate.recipes.recipe import Recipe

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
Command = Callable[..., None]


def _given(function: Command) -> Command:
    """NAME, and what changes its settings."""
    function = click.option("--config", "config_file", metavar="TOML", help="Settings of the recipe.")(function)
    option = click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="One setting of the recipe.")
    return click.argument("name")(option(function))


@click.command("list", short_help="List the recipes and what they reproduce.")
@JSON
def list_recipes(as_json: bool) -> None:
    """List the recipes and what they reproduce."""
    import json

    from vlpipe.evaluate.recipes import recipe

    found = {name: recipe.load(name) for name in recipe.names()}
    if as_json:
        click.echo(json.dumps({name: {"title": r.title, "reproduces": r.reproduces} for name, r in found.items()}))
        return
    width = max(map(len, found))
    for name, one in found.items():
        click.echo(f"{name:{width}}  {one.reproduces}: {one.title}")


@click.command(short_help="Show a recipe's needs, settings, commands, and the paper's figures.")
@_given
@click.option("--full", is_flag=True, help="Every command, not the first of each step.")
@JSON
def show(name: str, sets: tuple[str, ...], config_file: str | None, full: bool, as_json: bool) -> None:
    """Show what recipe NAME needs, its settings, its commands as they would run, and the paper's figures."""
    import json
    import shlex

    from vlpipe.evaluate.recipes.checking import planned

    recipe = _load(name, sets, config_file)
    steps = [["vlpipe " + shlex.join(words) for words in lines] for lines in planned(recipe)]
    if as_json:
        click.echo(json.dumps(recipe.model_dump() | {"commands": [line for lines in steps for line in lines]}))
        return
    click.echo("\n".join(_about(recipe)))
    for step, lines in zip(recipe.steps, steps, strict=True):
        click.echo(f"\n# {len(lines)} commands, over {' x '.join(step.over)}" if len(lines) > 1 else "")
        click.echo("\n".join(lines if full else lines[:1]))
    _figures(recipe)


def _about(recipe: Recipe) -> list[str]:
    lines = [recipe.title, f"{recipe.paper}: {recipe.reproduces}", *recipe.about.strip().splitlines(), ""]
    lines += [f"hours: {recipe.hours}"] if recipe.hours else []
    lines += [f"needs: {need.what}, at --set {need.setting}; {need.source}" for need in recipe.needs]
    return [*lines, "", *(line for key, value in recipe.settings.items() for line in _setting(key, value))]


def _setting(key: str, value: Any) -> list[str]:
    """A list of tables has a line for each."""
    from vlpipe.evaluate.recipes.filling import toml

    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [f"{key} = [", *(f"  {toml(entry)}," for entry in value), "]"]
    return [f"{key} = {toml(value)}"]


def _figures(recipe: Recipe) -> None:
    """The tables of the paper."""
    from rich.table import Table

    from vlpipe.foundation.console import print_table

    for numbers in recipe.numbers:
        table = Table(
            *numbers.rows, *(column.title for column in numbers.columns), title=f"paper: {numbers.title}"
        )
        for row in numbers.paper:
            table.add_row(*map(str, row))
        print_table(table)


@click.command(short_help="Run a recipe's commands, and set its numbers beside the paper's.")
@_given
@JSON
@click.pass_context
def run(ctx: click.Context, name: str, sets: tuple[str, ...], config_file: str | None, as_json: bool) -> None:
    """Run the commands of recipe NAME, or of a file ./NAME.toml, and set its numbers beside the paper's.

    Data, models, names and settings are looked for first. The same command goes on where it stopped: what is
    done is not done again. FOLDER/NAME.md and .json keep the table, FOLDER being the setting `folder`.
    """
    import json
    from pathlib import Path

    from vlpipe.evaluate.recipes import checking, comparison, running
    from vlpipe.evaluate.recipes.recipe import FOLDER

    recipe = _load(name, sets, config_file)
    root = ctx.find_root().command
    checking.check(recipe, lambda words: parsed(root, words))
    made = running.run(
        recipe, lambda words: _call(root, words), lambda line: click.secho(line, bold=True, err=True)
    )
    lines = comparison.lines_of(recipe, made)
    for told in comparison.undefined(lines):
        click.echo(f"warning: {told}", err=True)
    stem = Path(recipe.settings[FOLDER]) / Path(name).stem
    written = comparison.write(recipe, lines, stem)
    if not as_json:
        click.echo(comparison.markdown(recipe, lines))
    if recipe.figures:
        from vlpipe.evaluate.recipes.figures import draw

        written += draw(recipe, made, lines, stem)
    for path in written:
        click.echo(f"wrote {path}", err=True)
    if as_json:
        click.echo(json.dumps({"numbers": comparison.records(lines), "files": [str(path) for path in written]}))


def _load(name: str, sets: tuple[str, ...], config_file: str | None) -> Recipe:
    from pathlib import Path

    from vlpipe.evaluate.recipes.recipe import load
    from vlpipe.foundation.config import parse_sets, read_toml

    return load(name, read_toml(Path(config_file)) if config_file else {}, parse_sets(sets))


def _call(root: click.Command, words: Sequence[str]) -> None:
    """One command line in this process; what it raises goes on."""
    code = root.main(args=list(words), prog_name="vlpipe", standalone_mode=False)
    if code:
        raise click.exceptions.Exit(int(code))


def parsed(root: click.Command, words: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """A command's name (`manifest build`) and parameters, without running it.

    Raises what the command raises, and `UsageError` for words that it does not take, or that ask for its help.
    """
    command, names, rest = root, [], list(words)
    while isinstance(command, click.Group):
        names.append(rest.pop(0) if rest else "")
        found = command.get_command(click.Context(command), names[-1])
        if found is None:
            raise UsageError(f"no command is named '{' '.join(names)}'")
        command = found
    try:
        return " ".join(names), command.make_context(" ".join(names), rest, help_option_names=[]).params
    except click.ClickException as error:
        raise UsageError(error.format_message()) from None
