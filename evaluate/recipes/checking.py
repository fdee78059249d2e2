"""Before any work: whether data and models are there, and names and settings of every command are right.

train-backbone, which stands above this stage, checks its own settings as it parses; its sources are checked here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vlpipe.evaluate.recipes.filling import Axes, commands, filled
from vlpipe.evaluate.recipes.recipe import FOLDER, Recipe
from vlpipe.foundation.config import parse_sets, resolve
from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError

Params = Mapping[str, Any]
Parsed = tuple[str, Params]  # a command's name and its parameters
Parse = Callable[[Sequence[str]], Parsed]  # from its words
TRAINED = ".encoder>"


def planned(recipe: Recipe) -> list[list[list[str]]]:
    """By step, its different command lines; `<sae>` stands for a run that is not made yet, `hf:<live.encoder>` for
    an encoder that is not trained yet.

    Raises `UsageError` for a step that refers to one which comes later, or to itself, `UnknownNameError` for a
    run or an encoder that a step does not make.
    """
    steps: dict[int, dict[tuple[str, ...], None]] = {id(step): {} for step in recipe.steps}
    made: dict[str, dict[str, str]] = {}  # by step

    def promised(name: str, axes: Axes) -> list[str]:
        """What stands for a run or an encoder that is not made yet."""
        step = name.partition(".")[0]
        if step not in made:
            raise UsageError(f"'{{{name}}}' is used before step '{step}' has run; expected that step further up")
        if name not in made[step]:
            raise UnknownNameError(f"run or encoder of step '{step}'", name, made[step])
        return [made[step][name]]

    for command in commands(recipe):
        words = filled(command, recipe, promised)
        steps[id(command.step)][tuple(words)] = None
        if command.step.name:
            made[command.step.name] = _promises(command.step.name, words)
    return [[list(words) for words in lines] for lines in steps.values()]


def _promises(step: str, words: Sequence[str]) -> dict[str, str]:
    """What a command line makes that others can name; of train-backbone a run only on cached images (--source)."""
    line, command = " ".join(words), words[0] if words else ""
    cached = command == "train-backbone" and "--source" in line
    run = {step: f"<{step}>"} if command == "train-head" or cached else {}
    family = re.search(r"--encoder[ =](\w+\.[\w.]+:\w+|\w+)", line) if command == "train-backbone" else None
    return run | ({f"{step}.encoder": f"{family[1]}:<{step}{TRAINED}"} if family else {})


def check(recipe: Recipe, parse: Parse) -> None:
    """Raise a `VlpipeError` of a kind for the first thing that would stop the recipe."""
    check_needs(recipe)
    steps = check_commands(recipe, parse)
    check_tables(recipe, steps)
    check_means(recipe)
    check_models(dict.fromkeys(_encoders(steps)), str(recipe.settings[FOLDER]))


def _encoders(steps: Sequence[Sequence[Parsed]]) -> Iterator[str]:
    """Specs of what is to encode or to learn."""
    from vlpipe.heads.sources import parse_source

    for name, params in (line for lines in steps for line in lines):
        if name == "extract":
            yield from params["encoders"]
        elif name == "train-backbone":
            yield parse_source(params["spec"]).output.partition("#")[0]


def check_needs(recipe: Recipe) -> None:
    """Raise `VlpipeError` for data that is not there, saying where it is published and how it is named."""
    for need in recipe.needs:
        place = str(recipe.settings[need.setting])
        if not Path(place).exists():
            raise VlpipeError(
                f"{need.what}: '{place}' does not exist; get it from {need.source} and say where it is: "
                f"--set '{need.setting}=\"DIR\"'"
            )


def check_tables(recipe: Recipe, steps: Sequence[Sequence[Parsed]]) -> None:
    """Raise `UnknownNameError`, `UsageError` for a table or figure of no evaluation or table, or of no axis."""
    evaluated = {
        step.name: lines[0][1]["tasks"]
        for step, lines in zip(recipe.steps, steps, strict=True)
        if step.name and lines[0][0] == "eval"
    }
    axes = axes_of(recipe, steps)
    for numbers in recipe.numbers:
        _check_named(f"eval step (of '{numbers.title}')", numbers.of, evaluated)
        tasks = evaluated[numbers.of]
        if numbers.task is None and len(tasks) > 1:
            raise UsageError(f"'{numbers.title}': expected task = one of {', '.join(tasks)}")
        _check_named(f"task of '{numbers.of}' ('{numbers.title}')", numbers.task or tasks[0], tasks)
        for axis in (*numbers.rows, *(name for column in numbers.columns for name in column.on)):
            _check_named(f"axis of '{numbers.title}'", axis, axes)
    for figure in recipe.figures:
        if figure.kind == "bars":
            _check_named(f"table (of '{figure.title}')", figure.numbers, [table.title for table in recipe.numbers])
            continue
        for step in (figure.by, figure.of):
            _check_named(f"eval step (of '{figure.title}')", step, evaluated)
        for axis in (figure.x, figure.y, figure.choose, figure.panel):
            _check_named(f"axis of '{figure.title}'", axis, axes & recipe.settings.keys())


def _check_named(what: str, given: str, known: Collection[str]) -> None:
    if given not in known:
        raise UnknownNameError(what, given, known)


def axes_of(recipe: Recipe, steps: Sequence[Sequence[Parsed]]) -> set[str]:
    """What runs and evaluations can differ in: what named steps are over, and what is swept."""
    from vlpipe.heads.sweep import parse_sweep

    found = {name for step in recipe.steps if step.name for name in step.over}
    for params in (params for lines in steps for name, params in lines if name == "train-head"):
        found |= {parse_sweep(text)[0] for text in params["sweeps"]} | ({"seed"} if params["seeds"] else set())
    return found


def check_means(recipe: Recipe) -> None:
    """Raise `UsageError` for a table whose lines would be means over more than they say; sweeps show it later."""
    over = {step.name: step.over for step in recipe.steps if step.name}
    for numbers in recipe.numbers:
        for axis in over[numbers.of]:
            named = [*numbers.rows, *numbers.mean, *(name for column in numbers.columns for name in column.on)]
            if axis not in named and len(recipe.settings[axis]) > 1:
                raise UsageError(
                    f"'{numbers.title}' does not name '{axis}', which has {len(recipe.settings[axis])} entries; "
                    f"expected it in rows, in mean or in a column's on, or one entry by --set {axis}=[...]"
                )


def check_commands(recipe: Recipe, parse: Parse) -> list[list[Parsed]]:
    """Parse every command; by step, their names and parameters. Raises what a wrong name or setting raises."""
    steps = []
    for place, lines in enumerate(planned(recipe), start=1):
        try:
            steps.append([_checked(*parse(words)) for words in lines])
        except VlpipeError as error:
            error.args = (f"step {place} ({' '.join(lines[0][:2])}): {error}",)
            raise
    return steps


def _checked(name: str, params: Params) -> Parsed:
    if name.startswith("recipe"):
        raise UsageError('a step cannot be a recipe; to take one over, give its name as like = "NAME"')
    CHECKS.get(name, _nothing)(params)
    return name, params


def check_models(specs: Iterable[str], made: str) -> None:
    """Raise `VlpipeError` for a model's folder or file that is not there, or that the hub does not give.

    What lies in the folder `made` the recipe makes itself, and what a step trains.
    """
    from vlpipe.extract.contracts import Spec
    from vlpipe.extract.hub import why_not_there

    for spec in (spec for spec in specs if not spec.endswith(TRAINED)):
        parsed = Spec.parse(spec)
        model, _, checkpoint = parsed.model.partition("@")
        local = [model] if model.startswith(("/", "./", "../", "~")) or model.count("/") > 1 else []
        local += [checkpoint] if "/" in checkpoint else []
        gone = [part for part in local if not Path(part).expanduser().exists()]
        if gone and not Path(gone[0]).is_relative_to(made):
            raise VlpipeError(f"encoder '{spec}': '{gone[0]}' does not exist; name another by --set")
        if parsed.family == "hf" and not Path(model).is_dir():
            reason = why_not_there(model)
            if reason is not None:
                raise VlpipeError(
                    f"encoder '{spec}' cannot be got ({reason}); a local folder does, too: hf:FOLDER"
                )


def _nothing(params: Params) -> None:
    """Other commands have no settings."""


def _train_head(params: Params) -> None:
    from vlpipe.heads.contracts import load_head, roles_of
    from vlpipe.heads.sources import parse_sources
    from vlpipe.heads.splits import fractions
    from vlpipe.heads.sweep import members, parse_seeds, parse_sweep

    fractions(params["split_rule"])
    lists = dict(parse_sweep(text) for text in params["sweeps"])
    lists |= {"seed": parse_seeds(params["seeds"])} if params["seeds"] else {}
    head = load_head(params["kind"])
    for values in members(lists):
        config = resolve(head.Config, parse_sets(params["sets"]), values)
        if not params["config_file"]:  # which may decide the roles
            parse_sources(params["sources"], roles_of(head, config))


def _train_backbone(params: Params) -> None:
    from vlpipe.heads.contracts import Role
    from vlpipe.heads.sources import parse_sources

    parse_sources(params["sources"], {"image": Role("image")})


def _eval(params: Params) -> None:
    from vlpipe.evaluate.contracts import TASKS
    from vlpipe.evaluate.run import chosen_task

    given = parse_sets(params["assignments"])
    tasks = [(name, TASKS.load(name).Config.model_fields) for name in params["tasks"]]
    for name, fields in tasks:
        chosen_task(name, {key: value for key, value in given.items() if len(tasks) == 1 or key in fields})


def _extract(params: Params) -> None:
    from vlpipe.extract.load import encoder_class

    given = parse_sets(params["sets"])
    known = [encoder_class(spec)[0].Config for spec in params["encoders"]]
    for config in known:
        resolve(
            config, {key: value for key, value in given.items() if len(known) == 1 or key in config.model_fields}
        )


def _build(params: Params) -> None:
    from vlpipe.manifests.build import dataset_class

    kind, member = dataset_class(params["name"])
    resolve(kind.Config, parse_sets(params["sets"]), member)


CHECKS: Mapping[str, Callable[[Params], None]] = {
    "train-head": _train_head,
    "train-backbone": _train_backbone,
    "eval": _eval,
    "extract": _extract,
    "manifest build": _build,
}
