"""The `train-head` command, and `cache gc`, which has to know what runs refer to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlpipe.foundation.errors import UsageError

if TYPE_CHECKING:
    from vlpipe.heads.sweep import Member

TOGETHER = {"cuda": 16}  # runs that train as one where nothing else is asked for: what a GPU is hardly busy with


@click.command("train-head")
@click.argument("kind")
@click.option("--manifest", type=click.Path(path_type=Path), required=True, help="Folder of the manifest.")
@click.option("--encoder", help="Features of every role without --source: SPEC or SPEC#OUTPUT.")
@click.option("--source", "sources", multiple=True, help="role=SPEC#OUTPUT[::RUN...]; may be repeated.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    default=Path("cache"),
    envvar="VLPIPE_CACHE",
    show_default=True,
    help="Folder of the features.",
)
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    envvar="VLPIPE_RUNS",
    show_default=True,
    help="Folder of runs.",
)
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file of settings.")
@click.option("--set", "sets", multiple=True, help="key=value, by TOML's grammar; may be repeated.")
@click.option("--sweep", "sweeps", multiple=True, help="key=value,value; every combination is trained.")
@click.option("--seeds", help="Seeds to train with: 5,42,55.")
@click.option("--split-rule", default="column", show_default=True, help="column, or random:0.7/0.15/0.15@SEED.")
@click.option(
    "--threads", type=click.IntRange(min=1), help="CPU threads; results are equal to the bit for one number."
)
@click.option(
    "--device", default="cpu", show_default=True, help="Where heads learn: cpu, cuda, or auto (cuda if there is)."
)
@click.option(
    "--together", type=click.IntRange(min=1), metavar="N",
    help="Runs of a sweep that train as one, at most, where shapes agree; default: 16 on a GPU, 1 on a CPU.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object a run instead of a line.")
def train_head(kind: str, **options: Any) -> None:
    """Train small heads on cached features.

    KIND is a name of `vlpipe list heads`, or importable.module:Class; `vlpipe list heads KIND` tells its settings.
    Each combination of the swept settings is one run; a finished one is skipped, half a one resumed.
    """
    from vlpipe.foundation.devices import pick_device
    from vlpipe.heads.opening import Opener
    from vlpipe.heads.splits import fractions
    from vlpipe.heads.sweep import Request, run_sweep

    _pin_threads(options["threads"])
    fractions(options["split_rule"])
    settings, lists = _settings(options)
    opener = Opener(options["manifest"], options["cache"], options["runs"])
    device = pick_device(options["device"])
    request = Request(
        kind, opener, options["runs"], options["sources"], options["encoder"], options["split_rule"], str(device),
        options["together"] or TOGETHER.get(device.type, 1),
    )  # fmt: skip
    done = []
    for member in run_sweep(request, settings, lists):
        done.append(member)
        if member.error is not None and len(lists) == 0:
            raise member.error
        click.echo(_json(member) if options["as_json"] else _line(member))
    _end(done, as_json=options["as_json"])


def _pin_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def _settings(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Settings of all runs, and the lists of those that vary.

    A --set wins over the file's list; raises `UsageError` where the command line says two things of one setting.
    """
    from vlpipe.foundation.config import parse_sets, read_toml
    from vlpipe.heads.sweep import parse_seeds, parse_sweep

    layer = read_toml(options["config_file"]) if options["config_file"] else {}
    lists = layer.pop("sweep", {})
    if not isinstance(lists, dict):
        raise UsageError(f"sweep = {lists!r}: expected a [sweep] table of lists")
    sets = parse_sets(options["sets"])
    swept = [parse_sweep(text) for text in options["sweeps"]]
    if options["seeds"] is not None:
        swept.append(("seed", parse_seeds(options["seeds"])))
    given = [*sets, *(key for key, _ in swept)]
    twice = sorted({key for key in given if given.count(key) > 1})
    if twice:
        raise UsageError(
            f"'{twice[0]}' is given more than once by --set, --sweep and --seeds; expected one of them"
        )
    lists = {key: values for key, values in lists.items() if key not in sets}
    return {**layer, **sets}, lists | dict(swept)


def _line(member: Member) -> str:
    """`tpc-0123456789ab  trained  runs/tpc-0123456789ab  lr=0.001  loss=0.1234`."""
    varied = "  ".join(f"{name}={value}" for name, value in member.varied.items())
    if member.outcome is None:
        return f"failed  {varied}  {member.error}"
    run = member.outcome.run
    scalars = "  ".join(f"{name}={value:.4g}" for name, value in run.scalars.items())
    return "  ".join(part for part in (run.id, member.outcome.action, str(run.folder), varied, scalars) if part)


def _json(member: Member) -> str:
    import json

    shown: dict[str, Any] = {"varied": dict(member.varied)}
    if member.outcome is None:
        return json.dumps(shown | {"action": "failed", "error": str(member.error)})
    run = member.outcome.run
    shown |= {"run": run.id, "folder": str(run.folder), "action": member.outcome.action}
    return json.dumps(shown | {"scalars": run.scalars, "rows": run.status.get("rows", {})})


def _end(done: list[Member], *, as_json: bool) -> None:
    """What is to be known of the rows, and the table of a sweep; raises where a member failed."""
    from vlpipe.foundation.errors import VlpipeError

    failed = [member for member in done if member.error is not None]
    if not as_json:
        _tell_rows(done)
        _tell_unlearned(done)
        if len(done) > 1:
            _table(done)
    if failed:
        raise VlpipeError(f"{len(failed)} of {len(done)} runs failed and the others are kept: {failed[0].error}")


def _tell_rows(done: list[Member]) -> None:
    """On stderr, the same for all members: images without a usable row for every role, and zero vectors."""
    from vlpipe.heads.checks import left_out

    rows: dict[str, Any] = next(
        (member.outcome.run.status.get("rows", {}) for member in done if member.outcome), {}
    )
    roles: dict[str, dict[str, int]] = rows.get("roles", {})
    if rows.get("images_left_out"):
        click.echo(f"{rows['images_left_out']} images left out ({left_out(rows)})", err=True)
    zeros = [f"{n['zero']} of role '{name}'" for name, n in roles.items() if n.get("zero")]
    if zeros:
        click.echo(f"zero vectors: {', '.join(zeros)}", err=True)


def _tell_unlearned(done: list[Member]) -> None:
    """On stderr: autoencoders that give images back worse than one mean for all would."""
    for run in (member.outcome.run for member in done if member.outcome):
        explained = run.scalars.get("explained_variance", 0.0)
        if explained < 0:
            click.echo(
                f"warning: {run.id}: explained_variance {explained:.3g} is below 0, worse than the mean of all "
                "images: more steps (epochs, smaller batches) or a smaller k may help",
                err=True,
            )


def _table(done: list[Member]) -> None:
    """One row a run: what varied, and its final scalars."""
    from rich.table import Table

    from vlpipe.foundation.console import print_table

    finished = [member.outcome.run.scalars for member in done if member.outcome]
    scalars = list(dict.fromkeys(name for found in finished for name in found if name not in done[0].varied))
    table = Table("run", *done[0].varied, *scalars)
    for member in done:
        found = member.outcome.run.scalars if member.outcome else {}
        name = member.outcome.run.id if member.outcome else "failed"
        values = [f"{found[scalar]:.4g}" if scalar in found else "" for scalar in scalars]
        table.add_row(name, *map(str, member.varied.values()), *values)
    print_table(table)


@click.command(short_help="Delete what nothing refers to.")
@click.option(
    "--cache", type=click.Path(path_type=Path), default=Path("cache"), envvar="VLPIPE_CACHE", show_default=True,
    help="The cache folder.",
)  # fmt: skip
@click.option(
    "--manifest", "manifests", multiple=True, metavar="DIR", type=click.Path(path_type=Path),
    help="A manifest whose stores stay; name all that live. Without it no store is deleted.",
)  # fmt: skip
@click.option(
    "--runs", multiple=True, metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="VLPIPE_RUNS", help="Runs whose stores stay; default: runs. May repeat.",
)  # fmt: skip
@click.option("--no-runs", is_flag=True, help="There are no runs whose stores should stay.")
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def gc(
    cache: Path, manifests: tuple[Path, ...], runs: tuple[Path, ...], no_runs: bool, dry_run: bool, as_json: bool
) -> None:
    """Delete what nothing refers to: what killed writers left behind, and with --manifest also whole stores.

    A store goes when it is of none of the manifests and no run, finished or half, was trained on it. Stores that
    are being written stay. Who reads a deleted one keeps what is open or in memory and misses the rest.
    """
    import json

    from vlpipe.cache_store.garbage import sweep
    from vlpipe.foundation.console import size_words
    from vlpipe.heads.references import references

    known = () if no_runs else runs or (Path("runs"),)
    if manifests and not all(folder.is_dir() for folder in known):
        raise UsageError(
            "there is no folder 'runs' here, so stores that runs were trained on would be deleted, too: give "
            "--runs DIR, or --no-runs if there are none"
        )
    swept = sweep(cache, references(manifests, known) if manifests else None, dry_run=dry_run)
    if as_json:
        shown = {
            name: [{**vars(item), "path": str(item.path)} for item in items] for name, items in vars(swept).items()
        }
        click.echo(json.dumps({"dry_run": dry_run, "bytes": swept.bytes, **shown}, indent=2, ensure_ascii=False))
        return
    for item in swept.deleted:
        click.echo(f"{size_words(item.bytes):>10}  {item.path}: {item.why}")
    for item in swept.kept:
        click.echo(f"kept: {item.path}: {item.why}", err=True)
    done = "would be deleted" if dry_run else "deleted"
    click.echo(f"{len(swept.deleted)} {done}, {size_words(swept.bytes)}")
