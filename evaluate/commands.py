"""`vlpipe eval` and `vlpipe results`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlpipe.foundation.errors import StaleError, UsageError, VlpipeError

if TYPE_CHECKING:
    from vlpipe.evaluate.answers import Evaluation

FOLDER = click.Path(file_okay=False, path_type=Path)
RUNS = click.option(
    "--runs", type=FOLDER, default=Path("runs"), envvar="VLPIPE_RUNS", show_default=True, help="Folder of runs."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
Failures = dict[str, int]  # what is told of a run that failed, and its exit code
FULL = click.option("--full", is_flag=True, help="Every number, not the main ones only.")


@click.command("eval")
@click.option("--run", "run_ids", multiple=True, metavar="ID", help="A finished run; may be given several times.")
@click.option("--all", "every", is_flag=True, help="Every finished run.")
@click.option(
    "--task",
    "tasks",
    multiple=True,
    default=("retrieval",),
    show_default=True,
    metavar="NAME",
    help="See `vlpipe list tasks`, with a NAME its settings; may be given several times.",
)
@click.option("--split", default="test", show_default=True, help="Which images, by the run's split rule; or all.")
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting of the tasks, e.g. 'ks=[1,5]'."
)
@click.option("--source", "sources", multiple=True, help="ROLE=SPEC#OUTPUT: cached features instead of a run.")
@click.option("--encoder", help="Cached features of both sides: SPEC or SPEC#OUTPUT.")
@RUNS
@click.option("--manifest", type=FOLDER, help="Another manifest than the run's own; that of --source.")
@click.option("--beside", type=FOLDER, help="A manifest of unrelated pictures and texts, for alignment.")
@click.option("--cache", type=FOLDER, envvar="VLPIPE_CACHE", help="Another cache than the run's own.")
@click.option("--figures", type=FOLDER, help="Folder of the figures.  [default: RUNS/figures]")
@FULL
@JSON
def evaluate(
    run_ids: tuple[str, ...],
    every: bool,
    tasks: tuple[str, ...],
    split: str,
    assignments: tuple[str, ...],
    sources: tuple[str, ...],
    encoder: str | None,
    runs: Path,
    manifest: Path | None,
    beside: Path | None,
    cache: Path | None,
    figures: Path | None,
    full: bool,
    as_json: bool,
) -> None:
    """Measure finished runs; numbers go to the ledger.

    Prints a table with bootstrap intervals, draws figures, keeps a row a query with each run, and adds the
    numbers to RUNS/results.jsonl. An evaluation that was done before is not done again. Of several runs one
    that fails does not stop the others; --all skips runs that have nothing to score. --source measures what the
    encoders made, before any training: with --task alignment.
    """
    from vlpipe.evaluate.tables import print_evaluations

    asked = _settings(tasks, assignments)
    if sources or encoder:
        run_ids = (*run_ids, _frozen(every, manifest, cache, runs, sources, encoder))
    chosen, failed = _chosen(runs, run_ids, every)
    said: dict[str, Any] = {"split": split, "manifest": manifest, "beside": beside, "cache": cache}
    done, skipped = _evaluated(runs, chosen, asked, failed, skip_unscorable=every, **said)
    drawn = _draw(done, figures or runs / "figures")
    if as_json:
        told = {"evaluations": [_as_json(e) for e in done], "failed": list(failed), "skipped": skipped}
        click.echo(json.dumps(told | {"figures": [str(path) for path in drawn]}))
    elif done:
        for made in _by_task(done):
            print_evaluations(made, full)
        for path in drawn:
            click.echo(f"figure: {path}", err=True)
    if failed:
        raise _all_in_one(list(failed.values()), len(done))
    if not done:
        raise VlpipeError(
            f"no finished run in '{runs}' has anything to score, as told above; train one that has, with vlpipe "
            "train-head"
        )


def _frozen(
    every: bool,
    manifest: Path | None,
    cache: Path | None,
    runs: Path,
    sources: tuple[str, ...],
    encoder: str | None,
) -> str:
    """Id of the run of cached features as they are."""
    from vlpipe.evaluate.frozen import frozen_run

    if every or manifest is None:
        raise UsageError("--source and --encoder: expected --manifest DIR beside them, and no --all")
    return frozen_run(manifest, cache or Path("cache"), runs, sources, encoder)


def _settings(tasks: Sequence[str], assignments: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By task: those of the settings that it has; of one task alone all must be its own.

    Raises what `chosen_task` raises: a wrong name or setting is no failure of one run.
    """
    from vlpipe.evaluate.contracts import TASKS
    from vlpipe.evaluate.run import chosen_task
    from vlpipe.foundation.config import parse_sets
    from vlpipe.foundation.errors import UnknownNameError

    options = parse_sets(assignments)
    known = {task: TASKS.load(task).Config.model_fields for task in dict.fromkeys(tasks)}
    every = {name for fields in known.values() for name in fields}
    for name in options.keys() - every if len(known) > 1 else ():
        raise UnknownNameError("setting of these tasks", name, every)
    found = options if len(known) == 1 else None
    asked = {task: found or {n: v for n, v in options.items() if n in fields} for task, fields in known.items()}
    for task, own in asked.items():
        chosen_task(task, own)
    return asked


def _evaluated(
    runs: Path,
    chosen: Sequence[str],
    asked: Mapping[str, dict[str, Any]],
    failed: Failures,
    *,
    skip_unscorable: bool,
    **said: Any,
) -> tuple[list[Evaluation], list[str]]:
    """Evaluations, and runs that had nothing to score; fills `failed`, but raises where one alone is asked for."""
    from vlpipe.evaluate.contracts import NothingToScoreError
    from vlpipe.evaluate.run import evaluate

    done: list[Evaluation] = []
    skipped: dict[str, None] = {}
    for run_id, task in ((run_id, task) for task in asked for run_id in chosen):
        try:
            done.append(evaluate(runs, run_id, task, options=asked[task], **said))
            _tell(done[-1])
        except VlpipeError as error:
            if skip_unscorable and isinstance(error, NothingToScoreError):
                skipped[run_id] = None
                click.echo(f"skipped: {error}", err=True)
            elif len(chosen) == len(asked) == 1 and not failed:
                raise
            else:
                _fail(failed, f"{run_id}{f', {task}' if len(asked) > 1 else ''}: {error}", error)
    return done, list(skipped)


def _fail(failed: Failures, line: str, error: VlpipeError) -> None:
    failed[" ".join(line.split())] = error.exit_code
    click.echo("failed: " + " ".join(line.split()), err=True)


def _all_in_one(codes: Sequence[int], done: int) -> VlpipeError:
    """An error with the code of the failures, or with 1 where they have several."""
    kinds = {kind.exit_code: kind for kind in (VlpipeError, UsageError, StaleError)}
    kind = kinds.get(codes[0], VlpipeError) if len(set(codes)) == 1 else VlpipeError
    return kind(f"{len(codes)} evaluations failed, as told above; {done} were made, and are kept")


def _chosen(runs: Path, run_ids: Sequence[str], every: bool) -> tuple[list[str], Failures]:
    """Ids of the runs to evaluate, and with --all the damaged ones."""
    from vlpipe.heads.runs import Run

    if every == bool(run_ids):
        raise UsageError("which runs? give --run ID, once or more, or --all")
    if not every:
        return list(dict.fromkeys(run_ids)), {}
    damaged: Failures = {}
    found = Run.list(runs, lambda error: _fail(damaged, str(error), error))
    finished = [run.id for run in found if run.state == "finished"]
    if not finished:
        raise VlpipeError(
            f"no finished run in '{runs}'; train one with vlpipe train-head, or name the folder by --runs"
        )
    return finished, damaged


def _tell(evaluation: Evaluation) -> None:
    """On stderr: what was not computed again, and what a reader must know."""
    if evaluation.reused:
        click.echo(f"{evaluation.run}: evaluated before, nothing computed again ({evaluation.path})", err=True)
    for note in evaluation.notes:
        click.echo(f"warning: {evaluation.run}: {note}", err=True)


def _draw(evaluations: Sequence[Evaluation], folder: Path) -> list[Path]:
    from vlpipe.evaluate.contracts import Drawn

    drawn: list[Path] = []
    for made in _by_task(evaluations):
        task = made[0].made_by
        drawn += task.draw(made, folder) if isinstance(task, Drawn) else []
    return drawn


def _by_task(evaluations: Sequence[Evaluation]) -> list[list[Evaluation]]:
    """Those of each task together."""
    names = dict.fromkeys(evaluation.task for evaluation in evaluations)
    return [[evaluation for evaluation in evaluations if evaluation.task == name] for name in names]


def _as_json(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "run": evaluation.run,
        "task": evaluation.task,
        "split": evaluation.split,
        "reused": evaluation.reused,
        "left_out": next(iter(evaluation.entries.values())).provenance.left_out,
        "notes": evaluation.notes,
        "rows": str(evaluation.path),
        "metrics": {
            name: {"value": entry.value, "interval": entry.interval, "rows": entry.rows}
            for name, entry in evaluation.entries.items()
        },
    }


@click.command("results")
@RUNS
@click.option("--task", help="Numbers of one task only.")
@click.option("--over-seeds", is_flag=True, help="Mean and deviation over runs that differ in their seed only.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print a Markdown table.")
@FULL
@JSON
def results(runs: Path, task: str | None, over_seeds: bool, as_markdown: bool, full: bool, as_json: bool) -> None:
    """Show the ledger's numbers as a table.

    Of each number the latest in RUNS/results.jsonl counts.
    """
    from vlpipe.evaluate import results as ledger
    from vlpipe.evaluate.contracts import TASKS
    from vlpipe.evaluate.tables import markdown, print_table

    path = runs / ledger.LEDGER
    entries = [e for e in ledger.latest(ledger.read(path)) if task in (None, e.task)]
    if task and not entries:
        TASKS.load(task)  # raises for a name that is no task's
    if as_json:
        click.echo(json.dumps([entry.model_dump() for entry in entries], ensure_ascii=False))
        return
    if not entries:
        of = f" of task '{task}'" if task else ""
        raise VlpipeError(f"'{path}' holds no results{of}; make some with vlpipe eval --all --runs {runs}")
    lines = ledger.over_seeds(entries) if over_seeds else ledger.by_run(entries)
    if as_markdown:
        click.echo(markdown(lines, full))
    else:
        print_table(lines, full)
