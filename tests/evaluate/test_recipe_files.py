"""Every recipe that ships: its commands parse, its settings are known, its figures are the paper's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from vlpipe import pipeline
from vlpipe.evaluate.contracts import TASKS
from vlpipe.evaluate.recipes.checking import check_commands, check_means, check_tables, planned
from vlpipe.evaluate.recipes.commands import parsed
from vlpipe.evaluate.recipes.filling import key_of
from vlpipe.evaluate.recipes.recipe import NONE, Recipe, load, names

SCATTERED = 100  # lines
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")


@pytest.fixture(params=names())
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return load(request.param)


def params_of(recipe: Recipe, name: str) -> dict[str, object]:
    """Of the first command of a named step."""
    place = next(n for n, step in enumerate(recipe.steps) if step.name == name)
    return dict(parsed(pipeline.cli, planned(recipe)[place][0])[1])


def test_every_command_parses_and_its_settings_are_known(recipe: Recipe) -> None:
    steps = check_commands(recipe, lambda words: parsed(pipeline.cli, words))
    check_tables(recipe, steps)
    check_means(recipe)


def test_every_number_is_of_a_named_evaluation_and_known_to_its_task(recipe: Recipe) -> None:
    for numbers in recipe.numbers:
        tasks = params_of(recipe, numbers.of)["tasks"]
        assert isinstance(tasks, tuple)
        known = TASKS.load(numbers.task or tasks[0]).headline
        for column in numbers.columns:
            start = column.metric.partition(":")[0]  # `binary_recall@1:swap_att`: of one kind
            assert column.metric in known or start in known, (numbers.title, column.metric, list(known))


def test_keys_of_rows_and_columns_are_entries(recipe: Recipe) -> None:
    for numbers in recipe.numbers:
        named = {*numbers.rows, *(axis for column in numbers.columns for axis in column.on)}
        entries = {
            axis: {key_of(entry) for entry in recipe.settings[axis]} for axis in named if axis in recipe.settings
        }
        pairs = [pair for row in numbers.paper for pair in zip(numbers.rows, row, strict=False)]
        pairs += [pair for column in numbers.columns for pair in column.on.items()]
        for axis, key in pairs:
            assert axis not in entries or key_of(key) in entries[axis], (numbers.title, axis, key)
        keys = [tuple(map(key_of, row[: len(numbers.rows)])) for row in numbers.paper]
        assert len(set(keys)) == len(keys), f"{numbers.title}: a row stands twice"


def test_the_papers_figures_stand_in_the_paper(recipe: Recipe, shared: Path) -> None:
    """In one line of a table; near each other where the text, made from a PDF, has tables without lines."""
    papers = [path.read_text(encoding="utf-8") for path in (shared / "papers").glob("*.txt")]
    (text,) = [text for text in papers if recipe.paper in text] or pytest.fail(f"no paper is named {recipe.paper}")
    lines = text.splitlines()
    height = 1 if any("\t" in line for line in lines) else SCATTERED
    found = [{float(word) for word in NUMBER.findall(" ".join(lines[n : n + height]))} for n in range(len(lines))]
    for numbers in recipe.numbers:
        for row in numbers.paper:
            figures = {float(figure) for figure in row[len(numbers.rows) :] if figure != NONE}
            assert any(figures <= near for near in found), f"{numbers.title}: no place of the paper has {row}"


def test_list_and_show() -> None:
    told = CliRunner().invoke(pipeline.cli, ["recipe", "list"])
    assert [line.split()[0] for line in told.stdout.splitlines()] == names()
    told = CliRunner().invoke(
        pipeline.cli, ["recipe", "show", "jam_table2", "--set", 'folder="elsewhere"', "--full"]
    )
    assert told.stdout.count("vlpipe train-head jam --manifest elsewhere/") == 6 * 3 * 3
    assert "https://cocodataset.org" in told.stdout
    assert "97.41" in told.stdout  # of the paper
