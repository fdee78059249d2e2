"""The command line's root: names the commands, loads each when it is called, turns errors into exit codes."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from vlpipe.foundation.errors import UnknownNameError, VlpipeError

# name -> (module:object, what it does); the words stand here too so that --help imports no stage (a test
# compares them with the commands' own).
COMMANDS = {
    "manifest": ("vlpipe.pipeline:manifest", "Build, check and extend tables of images and texts."),
    "extract": ("vlpipe.extract.commands:extract", "Encode a manifest once into the cache."),
    "train-head": ("vlpipe.heads.commands:train_head", "Train small heads on cached features."),
    "eval": ("vlpipe.evaluate.commands:evaluate", "Measure finished runs; numbers go to the ledger."),
    "results": ("vlpipe.evaluate.commands:results", "Show the ledger's numbers as a table."),
    "train-backbone": (
        "vlpipe.backbones.commands:train_backbone",
        "Train whole towers with OBJECTIVE on a manifest's images and captions.",
    ),
    "cache": ("vlpipe.pipeline:cache", "Look after the features that are cached."),
    "recipe": ("vlpipe.pipeline:recipe", "Repeat a paper's table: its commands, and its figures beside ours."),
    "list": ("vlpipe.pipeline:list_shelf", "List what can be named on the command line."),
    "demo": ("vlpipe.pipeline:demo", "Run the main job on made-up digits with the bundled encoder."),
    "doctor": ("vlpipe.pipeline:doctor", "Show versions and check that this installation works."),
}
MANIFEST_COMMANDS = {
    "build": ("vlpipe.manifests.commands:build", "Build the manifest of a published data set."),
    "from-table": (
        "vlpipe.manifests.commands:from_table",
        "Make a manifest of a CSV, JSON lines or Parquet table.",
    ),
    "check": ("vlpipe.manifests.commands:check", "Check digest, files, splits and texts of a manifest."),
    "views": ("vlpipe.derive.commands:views", "Add views of the captions: less said, or said otherwise."),
    "negatives": ("vlpipe.derive.commands:negatives", "Add hard negatives of the captions: one thing changed."),
}
CACHE_COMMANDS = {
    "ls": ("vlpipe.cache_store.commands:ls", "List all stores: encoder, outputs, rows, size."),
    "show": ("vlpipe.cache_store.commands:show", "Show one store: counts, and every output's fingerprint."),
    "verify": ("vlpipe.extract.tools.commands:verify", "Check every file's checksum and name the damaged rows."),
    "gc": ("vlpipe.heads.commands:gc", "Delete what nothing refers to."),
    "export": ("vlpipe.cache_store.commands:export", "Write an output's rows to safetensors, npz or Parquet."),
    "import": ("vlpipe.extract.tools.commands:import_", "Make a store of features from an .npy file."),
}
RECIPE_COMMANDS = {
    "list": ("vlpipe.evaluate.recipes.commands:list_recipes", "List the recipes and what they reproduce."),
    "show": (
        "vlpipe.evaluate.recipes.commands:show",
        "Show a recipe's needs, settings, commands, and the paper's figures.",
    ),
    "run": (
        "vlpipe.evaluate.recipes.commands:run",
        "Run a recipe's commands, and set its numbers beside the paper's.",
    ),
}
SHELVES = {
    "encoders": "vlpipe.extract.contracts:SHELF",
    "heads": "vlpipe.heads.contracts:SHELF",
    "objectives": "vlpipe.backbones.contracts:SHELF",
    "metrics": "vlpipe.evaluate.contracts:METRICS",
    "tasks": "vlpipe.evaluate.contracts:TASKS",
    "datasets": "vlpipe.manifests.contracts:SHELF",
}
ENCODER = "bundled:mad-clip"
INTERRUPTED = 130


def _load(path: str) -> object:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Lazy(click.Group):
    """A group that imports a command's module only when that command is called."""

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], what: str, **kwargs: Any) -> None:
        """`table` is like `COMMANDS`; `what` says in errors what its names are."""
        super().__init__(*args, **kwargs)
        self._table = table
        self._what = what

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order in which a project uses them."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One command, imported now."""
        if cmd_name not in self._table:
            raise UnknownNameError(self._what, cmd_name, self._table)
        command = _load(self._table[cmd_name][0])
        if not isinstance(command, click.Command):
            raise TypeError(f"{self._table[cmd_name][0]} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands from the words above."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in self._table.items()])


@click.command(cls=Lazy, table=COMMANDS, what="command", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vlpipe")
def cli() -> None:
    """Encode images and texts once with frozen models, then train and evaluate small heads on the cache.

    Exit codes: 0 done, 1 an error that you can mend, 2 usage, 3 done but too many rows failed, 4 stale or
    foreign cache or run, 130 interrupted.
    """


@click.command(cls=Lazy, table=MANIFEST_COMMANDS, what="manifest command")
def manifest() -> None:
    """Build, check and extend tables of images and texts."""


@click.command(cls=Lazy, table=CACHE_COMMANDS, what="cache command")
def cache() -> None:
    """Look after the features that are cached."""


@click.command(cls=Lazy, table=RECIPE_COMMANDS, what="recipe command")
def recipe() -> None:
    """Repeat a paper's table: its commands, and its figures beside ours."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line and exit with its code; what a user can mend is one line on stderr."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    try:
        cli.main(args=arguments, prog_name="vlpipe", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except VlpipeError as error:
        _say(str(error))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted; what was committed is kept, the same command goes on from there")
        return INTERRUPTED
    except BrokenPipeError:
        return 0  # the reader (head, less) has seen enough
    except OSError as error:
        _say(f"{error.strerror or error}: {error.filename or 'no file named'}")
        return 1
    return 0


def _say(message: str) -> None:
    click.echo("error: " + " ".join(message.split()), err=True)


@click.command(name="list", short_help=COMMANDS["list"][1])
@click.argument("shelf", metavar="|".join(SHELVES))
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list, or of one thing an object.")
def list_shelf(shelf: str, name: str | None, as_json: bool) -> None:
    """List the names of one SHELF, as the other commands take them; of one NAME what it is and its settings."""
    import json

    if shelf not in SHELVES:
        raise UnknownNameError("shelf", shelf, SHELVES)
    found: Any = _load(SHELVES[shelf])
    if name is not None:
        kind = name.partition(":")[0]  # an encoder's SPEC and torchvision:NAME say more
        short = shelf in ("encoders", "datasets") and kind in found.names()
        click.echo(_described(shelf, found.load(kind if short else name), as_json))
        return
    names = found.names()
    if shelf == "encoders":
        from vlpipe.extract.encoders.bundled import Bundled

        shipped = [f"bundled:{model}" for model in Bundled.models()]
        names = [full for name in names for full in (shipped if name == "bundled" else [name])]
    click.echo(json.dumps(names) if as_json else "\n".join(names))


def _described(shelf: str, found: type[Any], as_json: bool) -> str:
    import json

    from vlpipe.foundation.describe import describe, settings_of, settings_told

    described = describe(found)
    own = "--set 'objective={NAME=VALUE}'" if shelf == "objectives" else "--set NAME=VALUE"
    parts = [described["about"], settings_told(described["settings"], own)]
    if shelf == "objectives":
        from vlpipe.backbones.settings import LoopConfig

        described["training"] = settings_of(LoopConfig)
        parts.append("training, " + settings_told(described["training"]))
    return json.dumps(described) if as_json else "\n\n".join(parts)


@click.command(short_help=COMMANDS["demo"][1])
@click.option("--folder", default="demo", show_default=True, help="Where manifest, cache, runs and figures go.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="A setting of the tpc head.")
@click.option("--digits", type=click.IntRange(min=10), help="Source digits at most, per split; default: all.")
def demo(folder: str, sets: tuple[str, ...], digits: int | None) -> None:
    """Build MAD, encode it with the bundled CLIP, train the TPC core filter, evaluate before and after.

    Run again it encodes and trains nothing; with another --set it trains only that.
    """
    from vlpipe.foundation.config import parse_sets, resolve
    from vlpipe.heads.kinds.tpc import Tpc

    resolve(Tpc.Config, parse_sets(sets))  # before minutes of work, not after
    manifest, cache, runs = f"{folder}/mad", f"{folder}/cache", f"{folder}/runs"
    head = ["--manifest", manifest, "--encoder", ENCODER, "--cache", cache, "--runs", runs, "--threads", "1"]
    changed = [part for setting in sets for part in ("--set", setting)]
    steps = [
        ["manifest", "build", "mad", "--out", manifest, *([f"--set=digits={digits}"] if digits else [])],
        ["extract", "--manifest", manifest, "--encoder", ENCODER, "--cache", cache, "--threads", "1"],
        ["train-head", "identity", *head],
        ["train-head", "tpc", *head, *changed],
        ["eval", "--all", "--task", "retrieval", "--split", "test", "--runs", runs],
    ]
    for step in steps:
        click.secho("$ vlpipe " + shlex.join(step), bold=True)
        cli.main(args=step, prog_name="vlpipe", standalone_mode=False)


@click.command(short_help=COMMANDS["doctor"][1])
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def doctor(as_json: bool) -> None:
    """Show versions, devices and threads, and encode one picture and one text with the bundled model."""
    import json
    import platform
    from importlib.metadata import version

    import crc32c
    import torch

    from vlpipe.extract.load import load_encoder

    load_encoder(ENCODER, {})
    libraries = ("vlpipe", "torch", "torchvision", "transformers", "open_clip_torch", "zarr", "pyarrow")
    facts = {name: version(name) for name in libraries} | {
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.is_available(),
        "crc32c": "in hardware" if crc32c.hardware_based else "in software, slow",
        ENCODER: "loads",
    }
    lines = [f"{name:16} {value}" for name, value in facts.items()]
    click.echo(json.dumps(facts) if as_json else "\n".join(lines))


if __name__ == "__main__":
    main()
