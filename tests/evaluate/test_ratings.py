from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from vlpipe.evaluate.choices import levels
from vlpipe.evaluate.contracts import Inputs
from vlpipe.evaluate.judgments import Judgments
from vlpipe.evaluate.metrics.ratings import Ratings, taus
from vlpipe.evaluate.run import evaluate
from vlpipe.evaluate.tasks.ratings import Ratings as Task
from vlpipe.foundation.errors import UsageError, VlpipeError

HEAD = "image\tcaption_image\tcaption_index\trating_1\trating_2\n"
LINES = "a.jpg\tb.jpg\t0\t1\t2\nb.jpg\ta.jpg\t1\t4\t3\na.jpg\ta.jpg\t1\t4\t4\nz.jpg\ta.jpg\t1\t1\t1\n"
Array = np.ndarray[Any, Any]


def written(folder: Path, text: str = HEAD + LINES) -> Path:
    path = folder / "ratings.tsv"
    path.write_text(text, encoding="utf-8")
    return path


def inputs(scores: Array) -> Inputs:
    """Images a and b with captions #0 and #1 each: scores (2, 4)."""
    whole = torch.from_numpy(scores)
    return Inputs(
        ["a.jpg", "b.jpg"],
        ["a.jpg#0", "a.jpg#1", "b.jpg#0", "b.jpg#1"],
        np.array([0, 0, 1, 1]),
        lambda i, t: whole[i, t],
        pairs=lambda i, t: whole[torch.from_numpy(i), torch.from_numpy(t)],
    )


def test_a_table_is_read_by_its_columns(tmp_path: Path) -> None:
    found = Judgments.read(written(tmp_path))
    assert found.raters == ("rating_1", "rating_2")
    assert [(p.image_id, p.text_id, p.ratings) for p in found.pairs[:2]] == [
        ("a.jpg", "b.jpg#0", (1.0, 2.0)),
        ("b.jpg", "a.jpg#1", (4.0, 3.0)),
    ]
    other = tmp_path / "one.jsonl"
    other.write_text(json.dumps({"image": "a.jpg", "text": "b.jpg#0", "rating": 1.5}))
    assert Judgments.read(other).pairs[0].ratings == (1.5,)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (HEAD, "holds no ratings"),
        (HEAD + "a.jpg\tb.jpg\t0\t1\tNA\n", "line 2: rating_2 is 'NA'; expected a number"),
        (HEAD + "a.jpg\tb.jpg\t0\t1\tnan\n", "line 2: rating_2 is 'nan'"),
        (HEAD + "\tb.jpg\t0\t1\t1\n", "line 2 has no image"),
        (HEAD + "a.jpg\tb.jpg\t0\t1\t1\n" * 2, "line 3: image 'a.jpg' with text 'b.jpg#0' stands twice"),
        ("image\ttext\tscore\na\tb\t1\n", "columns image, text, score; expected rating_1"),
        ("picture\ttext\trating\na\tb\t1\n", "has no image; expected the columns image, text"),
    ],
)
def test_a_table_that_is_none(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(VlpipeError, match=told):
        Judgments.read(written(tmp_path, text))


def test_pairs_that_are_there_take_part(tmp_path: Path) -> None:
    """Three of four are; a.jpg with its own caption only with `own`. Both orders agree with every rating."""
    judgments = Judgments.read(written(tmp_path))
    scores = np.array([[0.0, 0.9, 0.1, 0.0], [0.0, 0.8, 0.0, 0.0]])
    rows = Ratings(judgments).rows(inputs(scores))
    assert rows.query_ids.tolist() == ["b.jpg#0", "a.jpg#1"]
    assert rows.image.tolist() == [0, 1]
    found = Ratings(judgments).summarise(rows)
    assert found["tau_b"] == found["tau_c"] == found["tau_b:rating_2"] == 1.0
    assert Ratings(judgments).counts(rows) == {n: 4 if n.endswith("flat") else 2 for n in found}
    assert len(Ratings(judgments, own=True).rows(inputs(scores))) == 3
    task = Task(Task.Config(file=str(written(tmp_path))))
    task.check(inputs(scores))
    assert task.notes(found)[0].startswith("1 of 4 rated pairs take no part: of 1 the image, and of 0 the caption")
    assert task.notes(found)[1].startswith("1 rated pairs are an image and its own caption")
    task = Task(Task.Config(file=str(written(tmp_path)), own=True))
    task.check(inputs(scores))
    assert len(task.notes(found)) == 1


def test_equal_scores_have_no_tau(tmp_path: Path) -> None:
    judgments = Judgments.read(written(tmp_path))
    scores = np.full((2, 4), 0.1) + np.array([[0, 1e-17, 0, 0], [0, 2e-17, 0, 0]])
    assert Ratings(judgments).summarise(Ratings(judgments).rows(inputs(scores))) == {}
    assert taus(np.arange(5.0), np.ones(5)) is None
    assert "no tau" in Task(Task.Config(file=str(written(tmp_path)))).notes({})[0]
    elsewhere = written(tmp_path, HEAD + "x.jpg\ty.jpg\t0\t1\t1\n")
    with pytest.raises(VlpipeError, match=r"none of the 1 rated pairs.*'x.jpg' with text 'y.jpg#0'"):
        Ratings(Judgments.read(elsewhere)).rows(inputs(scores))


def test_levels_join_ties_and_keep_the_order() -> None:
    assert levels(np.array([0.3, -1.0, 0.3 + 1e-17, 2.0])).tolist() == [1, 0, 1, 2]
    assert levels(np.zeros(0)).tolist() == []


@pytest.mark.parametrize("cells", [1, 40, 1 << 20])
def test_taus_by_hand_against_a_loop_and_scipy(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two discordant of six pairs: (4 - 2) / 6."""
    monkeypatch.setattr("vlpipe.evaluate.metrics.ratings.CELLS", cells)
    left, right = np.array([1.0, 2, 3, 4]), np.array([2.0, 1, 4, 3])
    assert taus(left, right) == pytest.approx((1 / 3, 1 / 3))
    rng = np.random.default_rng(0)
    left, right = rng.integers(0, 9, 80).astype(float), rng.integers(1, 5, 80).astype(float)
    signs = [
        (np.sign(left[i] - left[j]), np.sign(right[i] - right[j])) for i in range(80) for j in range(i + 1, 80)
    ]
    surplus = sum(a * b for a, b in signs)
    b = surplus / np.sqrt(sum(a != 0 for a, _ in signs) * sum(b != 0 for _, b in signs))
    c = 2 * surplus * 4 / (80**2 * 3)
    assert taus(left, right) == pytest.approx((b, c))
    found = [kendalltau(left, right, variant=variant).statistic for variant in ("b", "c")]
    assert taus(left, right) == pytest.approx(found)


def test_ratings_of_a_run(place: Callable[..., Any], tmp_path: Path) -> None:
    """Where the table lies does not matter; what is in it does."""
    made = place(images=12, each=1)
    run = made.train()
    rows = [
        {"image": f"i{k}", "text": f"t{(k + 2) % 12}", "rating_1": k % 4, "rating_2": k % 3} for k in range(12)
    ]

    def kept(name: str) -> str:
        path = tmp_path / name / "r.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(map(json.dumps, rows)))
        return str(path)

    done = evaluate(made.runs, run, "ratings", options={"file": kept("here")})
    assert done.entries["tau_b"].rows == 6  # test images are every second one
    assert "6 of 12 rated pairs take no part" in done.notes[0]
    assert str(tmp_path) not in json.dumps(done.entries["tau_b"].provenance.options)
    again = evaluate(made.runs, run, "ratings", options={"file": kept("there")})
    assert again.reused
    assert again.notes == done.notes
    rows[1]["rating_1"] = 3
    assert not evaluate(made.runs, run, "ratings", options={"file": kept("there")}).reused
    with pytest.raises(UsageError, match="ratings of which pairs"):
        evaluate(made.runs, run, "ratings")
    rows[:] = [row | {"rating_1": 1, "rating_2": 1} for row in rows]
    for name in ("here", "there"):
        with pytest.raises(
            VlpipeError, match=r"'ratings' gives no number of run .*no tau: all scores, or all ratings"
        ):
            evaluate(made.runs, run, "ratings", options={"file": kept(name)})


def test_the_experts_judgments_are_such_a_table(repository: Path) -> None:
    path = repository.parent / "shared" / "data" / "flickr8k" / "expert_judgments.tsv"
    if not path.exists():
        pytest.skip("the shared data are not here")
    found = Judgments.read(path)
    assert found.raters == ("rating_1", "rating_2", "rating_3")
    assert {r for pair in found.pairs for r in pair.ratings} == {1.0, 2.0, 3.0, 4.0}
    assert len(found.pairs) == 5822
