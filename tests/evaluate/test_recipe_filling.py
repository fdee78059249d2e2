"""The grammar of recipe files: settings, axes, and what stands in braces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vlpipe.evaluate.recipes.checking import planned
from vlpipe.evaluate.recipes.filling import commands, filled, toml
from vlpipe.evaluate.recipes.recipe import Recipe, load
from vlpipe.evaluate.recipes.running import Made
from vlpipe.foundation.config import parse_value
from vlpipe.foundation.errors import UnknownNameError, UsageError

SETTINGS: dict[str, Any] = {
    "folder": "out",
    "seed": [5, 42],
    "objective": ["con", "spread"],
    "rate": 1e-4,
    "pair": [{"name": "A", "image": "x y", "files": ["f1", "f2"]}, {"name": "B", "image": "z", "files": []}],
}


def recipe(*steps: dict[str, Any], **settings: Any) -> Recipe:
    shared = {"title": "t", "paper": "p", "reproduces": "r"}
    return Recipe.model_validate(shared | {"settings": SETTINGS | settings, "steps": list(steps)})


def lines(*steps: dict[str, Any], made: Made | None = None) -> list[list[str]]:
    one = recipe(*steps)
    return [filled(command, one, (made or Made()).runs_of) for command in commands(one)]


def test_places() -> None:
    run = (
        "train-head jam --runs {folder}/runs --seeds {seed,} --sweep objective={objective,} {pair.files*} a{seed*}"
    )
    (words,) = lines({"run": run.replace("{pair.files*}", ""), "set": {"lr": "{rate}", "of": ["{folder}", 1]}})
    assert words == [
        "train-head", "jam", "--runs", "out/runs", "--seeds", "5,42", "--sweep", 'objective="con","spread"', "a5",
        "a42", "--set", "lr=0.0001", "--set", 'of=["out", 1]',
    ]  # fmt: skip


def test_a_step_is_run_for_every_combination_of_its_axes_and_sees_its_own_entries() -> None:
    found = lines({"run": "x {pair.image} {seed} {pair.files*}", "over": ["pair", "seed"], "set": {"s": "{seed}"}})
    assert [words[:-2] for words in found] == [
        ["x", "x y", "5", "f1", "f2"],
        ["x", "x y", "42", "f1", "f2"],
        ["x", "z", "5"],
        ["x", "z", "42"],
    ]
    assert [words[-1] for words in found] == ["s=5", "s=42"] * 2


def test_a_list_of_tables_gives_a_field_of_each() -> None:
    assert lines({"run": "x --output={pair.image*}"}) == [["x", "--output=x y", "--output=z"]]


def test_other_braces_stay() -> None:
    assert lines({"run": """x --set 'where={subset = ["a"]}'"""}) == [["x", "--set", 'where={subset = ["a"]}']]


def test_a_run_is_that_of_the_same_entries() -> None:
    steps = (
        {"name": "sae", "run": "train-head sae", "over": ["seed"]},
        {"run": "train-head tevi --source=image=x::{sae}", "over": ["pair", "seed"]},
    )
    made = Made(runs=[("sae", {"seed": "5"}, "sae-1"), ("sae", {"seed": "42"}, "sae-2")])
    assert [words[-1][-5:] for words in lines(*steps, made=made)[2:]] == ["sae-1", "sae-2"] * 2
    (words,) = lines(steps[0] | {"over": []}, {"run": "eval --run={sae*}"}, made=made)[1:]
    assert words == ["eval", "--run=sae-1", "--run=sae-2"]
    with pytest.raises(UsageError, match="is 2 runs; expected one"):
        lines(steps[0] | {"over": []}, {"run": "eval --run={sae}"}, made=made)
    with pytest.raises(UsageError, match="made nothing"):
        lines(*steps)


def test_a_plan_names_each_command_once() -> None:
    (step,) = planned(recipe({"run": "extract {pair.image}", "over": ["seed", "pair"]}))
    assert step == [["extract", "x y"], ["extract", "z"]]


def test_a_plan_refuses_runs_that_come_later() -> None:
    later = {"name": "sae", "run": "train-head sae"}
    assert planned(recipe(later, {"run": "eval --run={sae}"}))[1] == [["eval", "--run=<sae>"]]
    for steps in (({"run": "eval --run={sae}"}, later), ({"name": "sae", "run": "train-head sae {sae}"},)):
        with pytest.raises(UsageError, match="used before step 'sae' has run"):
            planned(recipe(*steps))


@pytest.mark.parametrize(
    ("step", "kind", "told"),
    [
        ({"run": "x {foldr}"}, UnknownNameError, "did you mean 'folder'"),
        ({"run": "x {pair.imag}", "over": ["pair"]}, UnknownNameError, "did you mean 'image'"),
        ({"run": "x", "over": ["folder"]}, UsageError, "expected a setting that is a list"),
        ({"run": "x", "over": ["sed"]}, UsageError, "over 'sed'"),
        ({"run": "x {seed*}{seed*}"}, UsageError, "one '\\*' in a word"),
        ({"run": "x 'y"}, UsageError, "No closing quotation"),
    ],
)
def test_a_slip_in_a_step(step: dict[str, Any], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        lines(step)


@pytest.mark.parametrize("value", ['a "b" \\ \n é', True, 3, 0.5, 1e-4, [1, "x"], {"a b": [1], "c": {"d": "e"}}])
def test_values_are_written_as_toml_reads_them(value: Any) -> None:
    assert parse_value(toml(value)) == value


FILE = """
title = "t"
paper = "p"
reproduces = "r"
[settings]
folder = "out"
rate = 0.5
seed = [1]
[[steps]]
run = "list heads"
"""


def test_settings_are_replaced_by_what_fits(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8")
    assert load(str(path), {"rate": 1}, {"seed": [2, 3]}).settings == {
        "folder": "out",
        "rate": 1.0,
        "seed": [2, 3],
    }
    with pytest.raises(UnknownNameError, match="did you mean 'seed'"):
        load(str(path), {"sed": [1]})
    for wrong in ({"seed": 5}, {"folder": 3}, {"rate": "x"}, {"rate": True}):
        with pytest.raises(UsageError, match=r"expected (list|str|float)"):
            load(str(path), wrong)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("colour = 1\n", "no key of recipe .* is named 'colour'"),
        ("[[steps]]\nrn = \"x\"\n", "no key in steps.1 of recipe .*; did you mean 'run'"),
        ("[[figures]]\nkind = \"bars\"\ntitel = \"x\"\n", "in figures.0.bars .*; did you mean 'title'"),
        ('[[steps]]\nname = "x"\nrun = "a"\n[[steps]]\nname = "x"\nrun = "b"\n', "'x' is the name"),
        ('[[steps]]\nname = "seed"\nrun = "a"\n', "'seed' is the name of another step or of a setting"),
        ('[[needs]]\nwhat = "w"\nsetting = "data"\nsource = "s"\n', "no setting is named 'data'"),
        ('[[numbers]]\ntitle = "T"\nof = "s"\nrows = ["a"]\ncolumns = [{title="c",metric="m"}]\npaper = [["x"]]\n',
         "expected 2 entries, got 1"),
        ('[[numbers]]\ntitle = "T"\nof = "s"\ncolumns = [{title="c", metric="m"}]\npaper = [["12"]]\n',
         "expected numbers"),
    ],
)  # fmt: skip
def test_a_slip_in_a_file(tmp_path: Path, more: str, told: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((more + FILE) if "[[" not in more else FILE + more, encoding="utf-8")
    with pytest.raises((UsageError, UnknownNameError), match=told):
        load(str(path))


def test_a_file_may_be_like_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('like = "jam_table14"\ntitle = "mine"\n[settings]\nseed = [1]\n', encoding="utf-8")
    mine, other = load(str(path)), load("jam_table14")
    assert (mine.title, mine.settings["seed"]) == ("mine", [1])
    assert (mine.steps, mine.numbers) == (other.steps, other.numbers)


def test_a_file_may_be_like_one_beside_it_but_not_like_itself(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(FILE, encoding="utf-8")
    path = tmp_path / "mine.toml"
    path.write_text('like = "./other.toml"\ntitle = "mine"\n', encoding="utf-8")
    assert (load(str(path)).title, load(str(path)).paper) == ("mine", "p")
    (tmp_path / "other.toml").write_text('like = "mine.toml"\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"'.*mine\.toml' is like itself: .*mine\.toml, .*other\.toml"):
        load(str(path))


@pytest.mark.parametrize(
    "more", ["like = 3\n", 'like = "jam_table2"\nsettings = 5\n', 'like = "jam_table2"\n[steps]\nrun = "x"\n']
)
def test_what_cannot_be_joined(tmp_path: Path, more: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(more, encoding="utf-8")
    with pytest.raises(UsageError, match=r"(like|settings|steps): expected"):
        load(str(path))


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'jam_table14'"):
        load("jam_tabel14")
