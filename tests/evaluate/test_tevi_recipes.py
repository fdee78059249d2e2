"""TEVI's recipes run through without work: runs stand on runs, and figures of the paper meet numbers of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import click
import pytest

from vlpipe.evaluate.recipes.comparison import lines_of
from vlpipe.evaluate.recipes.recipe import Recipe, load, names
from vlpipe.evaluate.recipes.running import run

NAMES = [name for name in names() if name.startswith("tevi_")]


class Answers:
    """Answers as vlpipe's commands do, without doing anything: each run and each number is another one."""

    def __init__(self, recipe: Recipe) -> None:
        self.metrics = sorted({column.metric for table in recipe.numbers for column in table.columns})
        self.runs: dict[str, str] = {}
        self.evaluated: list[str] = []

    def __call__(self, words: Sequence[str]) -> None:
        if words[0] in ("train-head", "train-backbone"):
            for source in (word for word in words if "::" in word):
                assert source.rpartition("::")[2] in self.runs.values(), f"{words} stand on no earlier run"
            id_ = self.runs.setdefault(json.dumps(words), f"{words[1]}-{len(self.runs)}")
            trained = {"encoder": f"hf:{id_}"} if words[0] == "train-backbone" else {}
            click.echo(json.dumps({"run": id_, "varied": {}, **trained}))
        if words[0] == "eval":
            ids = [word.removeprefix("--run=") for word in words if word.startswith("--run=")]
            assert set(ids) <= set(self.runs.values())
            self.evaluated += ids
            tasks = [words[n + 1] for n, word in enumerate(words) if word == "--task"] or ["retrieval"]
            numbers = {metric: {"value": 0.25} for metric in self.metrics}
            told = [{"run": one, "task": task, "metrics": numbers} for task in tasks for one in ids]
            click.echo(json.dumps({"evaluations": told}))


@pytest.mark.parametrize("name", NAMES)
def test_every_run_is_evaluated_and_every_figure_meets_a_number(name: str) -> None:
    recipe = load(name)
    answers = Answers(recipe)
    made = run(recipe, answers, lambda line: None)
    lines = lines_of(recipe, made)
    for table in recipe.numbers:
        own = [line for line in lines if line.table == table.title]
        assert own, table.title
        assert all(line.ours is not None and line.ours.mean in (0.25, 25.0) for line in own)
        expected = sum(figure != "-" for row in table.paper for figure in row[len(table.rows) :])
        assert sum(line.paper is not None for line in own) == expected
    below = {run_id for words in answers.runs for run_id in re.findall(r"::(\w+-\d+)", words)}
    assert set(answers.runs.values()) - below <= set(answers.evaluated)


def test_the_grid_of_tables_1_and_2_is_the_papers() -> None:
    """By hand, from the paper's tables: edited CLIP ViT-L/14 on IIW, and unedited SigLIP on Flickr30k."""
    tables: dict[str, list[list[Any]]] = {table.title: table.paper for table in load("tevi_retrieval").numbers}
    edited = {tuple(row[:2]): row[2:] for row in tables["Tables 1 and 2, +TEVI"]}
    assert edited["CLIP ViT-L/14", "IIW"] == [58.33, 85.46, 90.85, 19.41, 37.80, 46.53]
    unedited = {tuple(row[:2]): row[2:] for row in tables["Tables 1 and 2, unedited"]}
    assert unedited["SigLIP ViT-B/16", "Flickr30k"] == [62.23, 85.40, 91.42, 44.69, 70.61, 79.33]
    drops = {row[0]: row[1:] for row in load("tevi_rococo").numbers[1].paper}
    for model, (first, *rest) in drops.items():
        for altered, drop, _ in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
            assert first - drop == pytest.approx(altered, abs=0.011), model
