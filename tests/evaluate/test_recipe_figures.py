"""What stands in a recipe's table and figures, by hand-sized cases."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from vlpipe.evaluate.recipes.checking import check_means, check_tables
from vlpipe.evaluate.recipes.comparison import lines_of, markdown, records, undefined
from vlpipe.evaluate.recipes.figures import chosen, draw, means_of
from vlpipe.evaluate.recipes.recipe import Best, Recipe
from vlpipe.evaluate.recipes.running import Found, Made
from vlpipe.foundation.errors import UnknownNameError, UsageError

BEST: dict[str, Any] = {
    "kind": "best", "title": "layers", "by": "val", "of": "test", "metric": "binary_recall@1", "x": "text",
    "y": "image", "choose": "alpha", "panel": "task",
}  # fmt: skip
BARS: dict[str, Any] = {"kind": "bars", "title": "bars", "numbers": "Table"}
TABLE: dict[str, Any] = {
    "title": "Table", "of": "test", "rows": ["text"], "mean": ["seed", "image", "task"],
    "columns": [{"title": f"R: {a}", "metric": "binary_recall@1", "on": {"alpha": a}} for a in (0.0, 0.5)]
    + [{"title": "C: cka", "metric": "cka", "on": {"alpha": 0.5}}],
    "paper": [["early", 60.0, "-", 0.25]],
}  # fmt: skip


def recipe(**more: Any) -> Recipe:
    settings = {
        "folder": "x",
        "text": ["early", "late"],
        "image": ["early", "late"],
        "task": ["add"],
        "alpha": [0.0, 0.5],
    }
    steps = [{"run": "list heads"}]
    told = {"title": "t", "paper": "p", "reproduces": "r", "settings": settings, "steps": steps}
    return Recipe.model_validate(told | {"figures": [BEST, BARS], "numbers": [TABLE]} | more)


def made(values: dict[tuple[str, str, str, str, str], float]) -> Made:
    """Of (step, text, image, alpha, seed)."""
    return Made(
        found=[
            Found(step, {"text": t, "image": i, "alpha": a, "seed": s, "task": "add"}, "run", "task",
                  {"binary_recall@1": value, "cka": value / 2})
            for (step, t, i, a, s), value in values.items()
        ]
    )  # fmt: skip


PLACES = [(t, i) for t in ("early", "late") for i in ("early", "late")]
# Validation prefers 0.5 for the early text, and is undecided for the late one; test does not decide.
VALUES = {
    ("val", t, i, a, s): (0.6 if a == "0.5" else 0.5) if t == "early" else 0.5
    for t, i in PLACES for a in ("0.0", "0.5") for s in ("5", "42")
} | {
    ("test", t, i, a, s): (0.4 if a == "0.5" else 0.9) + (0.1 if s == "5" else 0.0)
    for t, i in PLACES for a in ("0.0", "0.5") for s in ("5", "42")
}  # fmt: skip


def test_the_best_is_chosen_by_one_step_and_read_from_the_other() -> None:
    best, found = Best.model_validate(BEST), made(VALUES)
    cells = chosen(means_of(best, found, "val"), means_of(best, found, "test"))
    assert cells["add", "early", "late"] == ("0.5", pytest.approx(45.0))
    assert cells["add", "late", "late"] == ("0.0", pytest.approx(95.0))  # of equal ones the first
    with pytest.raises(UsageError, match="no numbers of step 'other'"):
        means_of(best, found, "other")
    with pytest.raises(UnknownNameError, match="did you mean 'alpha'"):
        means_of(best.model_copy(update={"choose": "alpa"}), found, "val")
    with pytest.raises(UnknownNameError, match="binary_recall@1"):
        means_of(best.model_copy(update={"metric": "binary_recal@1"}), found, "val")


def test_figures_are_drawn(tmp_path: Path) -> None:
    one, found = recipe(), made(VALUES)
    paths = draw(one, found, lines_of(one, found), tmp_path / "out" / "study")
    assert [path.name for path in paths] == ["study-1.png", "study-2.png"]
    assert all(path.stat().st_size > 5000 for path in paths)
    again = draw(one, found, lines_of(one, found), tmp_path / "again" / "study")
    assert [a.read_bytes() for a in paths] == [b.read_bytes() for b in again]


def test_the_table() -> None:
    found = made(VALUES)
    lines = lines_of(recipe(), found)
    first = next(line for line in records(lines) if line["row"] == ("early",) and line["column"] == "R: 0.0")
    # 0.9 and 1.0 twice each (both images): mean 95, sample deviation 10 / sqrt(12)
    assert first["ours"] == {"mean": pytest.approx(95.0), "std": pytest.approx(5.7735), "n": 4}
    assert first["difference"] == pytest.approx(35.0)
    text = markdown(recipe(), lines)
    assert "| early | R: 0.0 | 60 | 95.0 ± 5.8 (n = 4) | +35.0 |" in text
    assert "| early | R: 0.5 |  | 45.0 ± 5.8 (n = 4) |  |" in text
    assert "| early | C: cka | 0.25 | 0.225 ± 0.029 (n = 4) | -0.025 |" in text
    assert "| late | R: 0.0 |  | 95.0 ± 5.8 (n = 4) |  |" in text  # the paper has no such row


def test_a_mean_over_more_than_was_said_is_refused() -> None:
    with pytest.raises(UsageError, match="its runs differ in image; expected"):
        lines_of(recipe(numbers=[TABLE | {"mean": ["seed", "task"]}]), made(VALUES))
    with pytest.raises(UnknownNameError, match="did you mean 'text'"):
        lines_of(recipe(numbers=[TABLE | {"rows": ["txt"]}]), made(VALUES))


def test_it_is_refused_before_anything_runs() -> None:
    steps = [{"run": "eval", "name": "test", "over": ["text", "image"]}]
    for mean, told in ((["image"], ""), ([], "does not name 'image', which has 2 entries")):
        one = recipe(numbers=[TABLE | {"mean": mean}], steps=steps)
        with pytest.raises(UsageError, match=told) if told else nullcontext():
            check_means(one)


@pytest.mark.parametrize(
    ("changed", "tasks", "told"),
    [
        ({"of": "tset"}, ("a",), "did you mean 'test'"),
        ({"of": "heads"}, ("a",), "no eval step .* is named 'heads'"),
        ({"rows": ["txt"]}, ("a",), "did you mean 'text'"),
        ({"columns": [{"title": "c", "metric": "m", "on": {"lr": 1, "alfa": 2}}]}, ("a",), "did you mean 'alpha'"),
        ({"task": "b"}, ("a",), "no task of 'test' .* is named 'b'"),
        ({}, ("a", "b"), "expected task = one of a, b"),
        ({"figures": [BARS | {"numbers": "Tabel"}]}, ("a",), "did you mean 'Table'"),
        ({"figures": [BEST | {"by": "heads"}]}, ("a",), "no eval step .* is named 'heads'"),
        ({"figures": [BEST | {"by": "test", "x": "txet"}]}, ("a",), "did you mean 'text'"),
    ],
)
def test_a_slip_in_a_table_is_refused_before_anything_runs(
    changed: dict[str, Any], tasks: tuple[str, ...], told: str
) -> None:
    steps = [
        {"run": "train-head", "name": "heads", "over": ["text"]},
        {"run": "eval", "name": "test", "over": ["text", "image"]},
    ]
    trained = {"sweeps": ("alpha=0.0,0.5", "lr=1"), "seeds": None}
    figures = changed.pop("figures", [])
    table = TABLE | {"rows": [], "columns": [{"title": "c", "metric": "m"}], "paper": []} | changed
    one = recipe(numbers=[table], steps=steps, figures=figures)
    with pytest.raises(UsageError if "expected" in told else UnknownNameError, match=told):
        check_tables(one, [[("train-head", trained)], [("eval", {"tasks": tasks})]])


def test_a_number_that_is_not_defined_is_an_empty_cell() -> None:
    without = [column | {"metric": "nothing"} for column in TABLE["columns"]]
    lines = lines_of(recipe(numbers=[TABLE | {"columns": without}]), made(VALUES))
    assert {line.ours for line in lines} == {None}
    assert undefined(lines)[0] == "'Table', column 'R: 0.0': no evaluation that was run gives 'nothing'"
    assert undefined(lines_of(recipe(), made(VALUES))) == []
    assert "| early | R: 0.0 | 60 | none |  |" in markdown(recipe(numbers=[TABLE | {"columns": without}]), lines)
