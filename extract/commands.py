"""The `extract` command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlpipe.foundation.errors import TooManyFailuresError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from vlpipe.cache_store.layout import Side
    from vlpipe.extract.contracts import Encoder
    from vlpipe.extract.job import Job
    from vlpipe.extract.plan import Plan
    from vlpipe.extract.run import Summary
    from vlpipe.manifests.manifest import Manifest

FOLDER = click.Path(path_type=Path, file_okay=False)
HEALED = 20  # lines on what was healed


@click.command(short_help="Encode a manifest once into the cache.")
@click.option("--manifest", required=True, type=FOLDER, help="Folder of the manifest.")
@click.option(
    "--encoder", "encoders", multiple=True, required=True, help="SHELF[:MODEL[@CHECKPOINT]]; may repeat."
)
@click.option(
    "--side", "sides", multiple=True, type=click.Choice(["image", "text"]), help="Default: all there are."
)
@click.option("--output", "outputs", multiple=True, help="An output such as tokens or layer_-1.mean; may repeat.")
@click.option("--dtype", default="float16", show_default=True, type=click.Choice(["float16", "float32"]))
@click.option(
    "--cache", default=Path("cache"), show_default=True, type=FOLDER, envvar="VLPIPE_CACHE",
    help="Folder of the stores.",
)  # fmt: skip
@click.option("--as", "name", help="Name of the store; default: the encoder's spec.")
@click.option(
    "--batch-size", default=64, show_default=True, type=click.IntRange(min=1), help="Pictures that go in together."
)
@click.option(
    "--tokens-per-batch", "tokens", type=click.IntRange(min=1),
    help="Tokens of texts that go in together, padding counted; default: 16 times the batch size, on a GPU 256.",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(min=0),
    help="Processes that decode pictures; default: one a core. 0: none, where a broken decoder may end all.",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(min=1), help="CPU threads of the model; rows are equal for one number."
)
@click.option(
    "--dask",
    metavar="ADDRESS",
    help="Have a Dask cluster do it: tcp://10.0.0.1:8786, or local:N processes.",
)
@click.option("--max-failures", default=0.01, show_default=True, type=click.FloatRange(0, 1), help="As a share.")
@click.option("--retry-failed", is_flag=True, help="Encode the rows that failed before again.")
@click.option(
    "--check-content/--trust-content", default=True, show_default=True,
    help="Read cached rows and their pictures too, and encode again those that are damaged or were replaced; to "
    "trust is quicker: of cached rows, only files that are missing or too short are noticed then.",
)  # fmt: skip
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), help="TOML file of the encoder's settings."
)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="One setting, read as TOML; may repeat.")
@click.option(
    "--plan",
    is_flag=True,
    help="Only say what would be done, how large it gets and how long it takes. Damaged rows and replaced "
    "pictures are not looked for.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object a store instead of a line.")
def extract(encoders: tuple[str, ...], **options: Any) -> None:
    """Encode a manifest's images and texts with frozen models; what is in the cache already stays as it is."""
    encoders = tuple(dict.fromkeys(encoders))
    if options["name"] == "":
        raise UsageError("--as '': expected a name for the store")
    if options["name"] and len(encoders) > 1:
        raise UsageError(f"--as '{options['name']}' names one store, but {len(encoders)} encoders are given")
    _pin_threads(options["threads"])
    jobs = _jobs(encoders, options)
    if options["plan"]:
        _tell_plans(jobs, options["as_json"])
        return
    failed: list[str] = []
    for summary in _summaries(jobs, options):
        _tell_healed(summary.healed)
        click.echo(_json(summary) if options["as_json"] else _line(summary))
        try:
            summary.check(options["max_failures"])
        except TooManyFailuresError as error:  # the other stores are made all the same
            failed.append(str(error))
    if failed:
        raise TooManyFailuresError("; ".join(failed))


def _summaries(jobs: list[Job], options: dict[str, Any]) -> Iterator[Summary]:
    """All images, then all texts: each is read once for all encoders."""
    from vlpipe.extract.run import extract_all

    with ExitStack() as stack:
        cluster = None
        if options["dask"] is not None:
            from vlpipe.extract.cluster import Cluster

            cluster = stack.enter_context(
                closing(Cluster(options["dask"], options["threads"], options["workers"]))
            )
        for side in dict.fromkeys(job.side for job in jobs):
            yield from extract_all([job for job in jobs if job.side == side], cluster)


def _tell_plans(jobs: list[Job], as_json: bool) -> None:
    from vlpipe.cache_store.preview import Growth, check_room
    from vlpipe.extract.plan import plan, plan_line

    click.echo("note: a plan reads no cached rows or pictures: damaged and replaced ones come on top", err=True)
    plans = []
    for job in jobs:
        plans.append(plan(job))
        click.echo(_json(plans[-1]) if as_json else plan_line(plans[-1]))
    total = Growth(sum(found.bytes for found in plans), sum(found.files for found in plans))
    check_room(jobs[0].store if len(jobs) == 1 else jobs[0].cache, total)


def _tell_healed(lines: tuple[str, ...]) -> None:
    for line in lines[:HEALED]:
        click.echo(f"healed: {line}", err=True)
    if len(lines) > HEALED:
        click.echo(f"healed: and {len(lines) - HEALED} more", err=True)


def _pin_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def _jobs(specs: tuple[str, ...], options: dict[str, Any]) -> list[Job]:
    """Every encoder and side, checked before the first row is encoded."""
    from vlpipe.extract.job import Job
    from vlpipe.extract.load import load_encoder
    from vlpipe.manifests.manifest import Manifest

    manifest = Manifest.open(options["manifest"])
    settings = _settings(specs, options)
    how = {
        key: options[key] for key in ("cache", "dtype", "batch_size", "tokens", "retry_failed", "check_content")
    }
    how["workers"] = (os.cpu_count() or 1) if options["workers"] is None else options["workers"]
    jobs = []
    known: dict[str, None] = {}
    for spec in specs:
        encoder = load_encoder(spec, settings[spec])
        for note in getattr(encoder, "notes", ()):
            click.echo(f"note: {note}", err=True)
        for side in _sides(spec, encoder, manifest, options["sides"]):
            known |= dict.fromkeys(encoder.outputs(side))
            outputs = _outputs(encoder, side, options["outputs"])
            if outputs:
                name = options["name"] or spec
                jobs.append(Job(manifest, encoder, name, side, outputs, spec=spec, settings=settings[spec], **how))
    _check_taken(options["outputs"], known)
    return jobs


def _settings(specs: tuple[str, ...], options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of each encoder: of several, each takes those that it knows, and one must know each."""
    from vlpipe.extract.load import encoder_class
    from vlpipe.foundation.config import parse_sets, read_toml

    file = read_toml(options["config_file"]) if options["config_file"] else {}
    given = {**file, **parse_sets(options["sets"])}
    fields = {spec: set(encoder_class(spec)[0].Config.model_fields) for spec in specs}
    for key in given:
        if not any(key in names for names in fields.values()):
            raise UnknownNameError("setting", key, set().union(*fields.values()))
    return {spec: {key: value for key, value in given.items() if key in fields[spec]} for spec in specs}


def _sides(spec: str, encoder: Encoder, manifest: Manifest, asked: tuple[Side, ...]) -> list[Side]:
    """The asked sides that the encoder has; by default those that the manifest has rows of, too."""
    wanted = asked or tuple(side for side in encoder.sides() if manifest.count(side))
    sides = [side for side in encoder.sides() if side in wanted]
    if not sides:
        what = f"--side {' --side '.join(asked)} asked" if asked else f"manifest '{manifest.folder}' has none"
        raise UsageError(f"encoder '{spec}' encodes {' and '.join(encoder.sides())}s; {what}")
    return sides


def _outputs(encoder: Encoder, side: Side, asked: tuple[str, ...]) -> tuple[str, ...]:
    """The asked outputs that this side has; by default its main one."""
    from vlpipe.extract.output_names import find_output, main_output

    known = encoder.outputs(side)
    if not asked:
        return (main_output(known),)
    found = []
    for name in asked:
        with suppress(UsageError, UnknownNameError):  # the other side may have it
            found.append(find_output(name, known))
    return tuple(dict.fromkeys(found))


def _check_taken(asked: tuple[str, ...], known: dict[str, None]) -> None:
    """Raise for an asked output that no side of any encoder has, naming the nearest."""
    from vlpipe.extract.output_names import find_output

    for name in asked:
        find_output(name, known)


def _json(summary: Summary | Plan) -> str:
    import json
    from dataclasses import asdict

    return json.dumps(asdict(summary))


def _line(summary: Summary) -> str:
    """`bundled:mad-clip image pooled: encoded 40 of 100 rows, 60 were there; 99 ok, 1 failed -> STORE`."""
    if not summary.encoded and not summary.copied:
        done = f"encoded 0, all {summary.rows} rows were there"
    else:
        copied = f", copied {summary.copied} rows of equal content" if summary.copied else ""
        done = f"encoded {summary.encoded} rows{copied} in {summary.seconds:.1f} s, {summary.already} were there"
    counts = {
        "ok": summary.ok,
        "cut": summary.cut,
        "failed": summary.failed,
        "with a zero vector": summary.zero_norm,
    }
    shown = ", ".join(f"{number} {word}" for word, number in counts.items() if number or word == "ok")
    listed = f" (most often: {summary.reason}; all in {summary.failures})" if summary.failures else ""
    outputs = ", ".join(summary.outputs)
    return f"{summary.encoder} {summary.side} {outputs}: {done}; {shown}{listed} -> {summary.store}"
