from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vlpipe.evaluate import figures
from vlpipe.evaluate.answers import Evaluation
from vlpipe.evaluate.contracts import Rows
from vlpipe.evaluate.metrics.retrieval import Retrieval
from vlpipe.evaluate.results import Entry, Provenance
from vlpipe.evaluate.tasks.retrieval import Retrieval as Task


def evaluation(run: str, seed: int = 0, each: int = 3, apart: str = "") -> Evaluation:
    draw = np.random.default_rng(seed)
    image = np.concatenate([np.arange(20), np.repeat(np.arange(20), each)])
    rank = draw.integers(1, 21, len(image))
    values = {"direction": (np.arange(len(image)) >= 20).astype(np.int8), "rank": rank, "rank_optimistic": rank}
    rows = Rows(np.arange(len(image)).astype(object), image, values)
    names = ("evaluation", "but_seeds", "kind", "fingerprints", "split_rule", "manifest")
    parts: dict[str, Any] = dict.fromkeys(names, "") | {n: {} for n in ("config", "sources", "content", "options")}
    made = Provenance(code=1, bootstrap={"level": 0.9}, **parts)
    entries = {
        name: Entry(
            run=run,
            task="retrieval",
            split="test",
            metric=name,
            value=value,
            interval=[value - 0.05, value + 0.1],
            rows=20,
            provenance=made,
            version="",
            commit=None,
            time="",
        )
        for name, value in Retrieval().summarise(rows).items()
    }
    told = run, "retrieval", "test"
    return Evaluation(*told, entries, rows, Path("rows"), False, [], Task(Task.Config()), Path("manifest"), apart)


def test_bars_are_the_entries_and_errors_the_intervals() -> None:
    both = [evaluation("a"), evaluation("b", 1)]
    left, right = figures.recalls(both).axes
    for axes, direction in ((left, "i2t"), (right, "t2i")):
        heights = [bar.get_height() for container in axes.containers[::2] for bar in container]
        expected = [100 * e.entries[f"{direction}_recall@{k}"].value for e in both for k in (1, 5, 10)]
        assert heights == pytest.approx(expected)
        (lines,) = axes.containers[1].lines[2]
        ends = [segment[:, 1].tolist() for segment in lines.get_segments()]
        entries = [both[0].entries[f"{direction}_recall@{k}"] for k in (1, 5, 10)]
        assert ends == [pytest.approx([100 * end for end in entry.interval or []]) for entry in entries]


def test_the_legend_names_the_level_of_the_intervals() -> None:
    (legend,) = figures.recalls([evaluation("a")]).legends
    assert "90 % bootstrap intervals over images" in legend.get_title().get_text()


def test_curves_end_at_all_images_and_dots_are_means() -> None:
    one = evaluation("a")
    left, right = figures.sensitivity([one]).axes
    for axes, name in ((left, "rank_std"), (right, "worst_gap")):
        curve, dot = axes.lines
        assert curve.get_ydata()[-1] == 100
        assert dot.get_xdata()[0] == pytest.approx(one.entries[name].value)


@pytest.mark.parametrize(("runs", "each"), [(1, 3), (9, 2), (30, 2), (2, 1)])
def test_files_are_pictures_and_repeat_to_the_byte(tmp_path: Path, runs: int, each: int) -> None:
    many = [evaluation(f"run-{n}", n, each) for n in range(runs)]
    first = figures.draw(many, tmp_path / "a")
    assert [path.name.split("-")[-1] for path in first] == ["recall.png", "sensitivity.png"]
    if runs > 2:
        return
    for path, again in zip(first, figures.draw(many, tmp_path / "b"), strict=True):
        assert path.read_bytes() == again.read_bytes()
        with Image.open(path) as picture:
            assert picture.size == (1500, 660)


def test_names_of_figures_tell_runs_manifests_and_settings_apart() -> None:
    a, b, c = (evaluation(run) for run in "abc")
    coco = [evaluation(run, apart="coco-12345678") for run in "abc"]
    cases = [[a], [b], [a, b], [b, a], [a, b, c], [a, c, b], [coco[0]], coco[:2], [a, coco[1]], [coco[0], b], coco]
    names = [figures.path_of(Path("f"), case).name for case in cases]
    assert names[:4] == [f"retrieval-test-{runs}.png" for runs in ("a", "b", "a-b", "b-a")]
    assert names[6:8] == ["retrieval-test-a-coco-12345678.png", "retrieval-test-a-b-coco-12345678.png"]
    assert names[4].startswith("retrieval-test-3-runs-")
    assert len(set(names)) == len(names)
    assert figures.path_of(Path("f"), [a], "no/name ü") == Path("f") / "retrieval-test-a-no-name-.png"
    many = [evaluation(f"{n}", apart=f"{n}") for n in range(100)]
    assert len(figures.path_of(Path("f"), many, "recall").name) < 60
