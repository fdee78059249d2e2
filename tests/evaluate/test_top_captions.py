from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from vlpipe.evaluate import examples
from vlpipe.evaluate.contracts import Inputs, Rows
from vlpipe.evaluate.metrics.retrieval import Retrieval
from vlpipe.evaluate.metrics.top_captions import TopCaptions
from vlpipe.evaluate.run import evaluate
from vlpipe.heads.ranks import NonFiniteScoresError

Array = np.ndarray[Any, Any]
HUES, SIZES = ["red", "blue", "blue"], ["large", "large", "small"]
TEXTS = ["red", "large-blue", "blue-small", "nothing said", "blueish large"]
OWNER = [0, 1, 2, 1, -1]


def world(scores: Array) -> Inputs:
    """Three images, and four captions of theirs that name hue, size, both or nothing, and one of no image."""
    whole = torch.from_numpy(scores)
    return Inputs(
        ["i0", "i1", "i2"],
        [f"t{k}" for k in range(5)],
        np.array(OWNER),
        lambda i, t: whole[i, t].clone(),
        columns={"role": ["caption"] * 5, "text": TEXTS},
        image_columns={"attributes": [{"hue": h, "size": s} for h, s in zip(HUES, SIZES, strict=True)]},
    )


def numbers(inputs: Inputs) -> dict[str, float]:
    metric = TopCaptions()
    rows = metric.rows(inputs)
    found = metric.summarise(rows)
    assert set(metric.counts(rows)) == set(found)
    return found


@pytest.mark.parametrize(
    ("image", "text", "true"),
    [
        (0, "red", 1), (1, "red", 0), (2, "red", 0),
        (0, "large-blue", 0), (1, "large-blue", 1), (2, "large-blue", 0),  # large, but image 2 is small
        (1, "nothing said", 1),  # its own
        (0, "nothing said", 0), (0, "blueish large", 0), (1, "blueish large", 0),  # says nothing of an image's own
    ],
)  # fmt: skip
def test_a_caption_is_true_where_the_attributes_bear_it_out(image: int, text: str, true: int) -> None:
    scores = np.zeros((3, 5))
    scores[image, TEXTS.index(text)] = 1
    rows = TopCaptions().rows(world(scores))
    assert rows.values["true"][image] == true
    assert rows.values["top"][image] == f"t{TEXTS.index(text)}"
    assert rows.values["right"][image] == (OWNER[TEXTS.index(text)] == image)


def test_more_is_true_than_is_the_images_own() -> None:
    """Image 2's top caption is of image 1 and says only its size: true of both when both are large."""
    inputs = world(np.array([[1.0, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 1, 0, 0, 0]]))
    columns = {**inputs.columns, "text": ["red", "large", "blue-small", "nothing", "x"]}
    told = [{"hue": "red", "size": "large"}, {"hue": "blue", "size": "large"}, {"hue": "green", "size": "large"}]
    inputs = replace(inputs, columns=columns, image_columns={"attributes": told})
    assert numbers(inputs) == pytest.approx({"i2t_recall@1": 1 / 3, "true_recall@1": 2 / 3})
    told[2] = {}
    assert numbers(inputs) == pytest.approx({"i2t_recall@1": 1 / 3, "true_recall@1": 1 / 2})
    assert numbers(replace(inputs, image_columns={"attributes": [{}] * 3})) == pytest.approx(
        {"i2t_recall@1": 1 / 3}
    )


def test_ties_count_against_the_image() -> None:
    assert set(numbers(world(np.ones((3, 5)))).values()) == {0.0}
    tied = np.zeros((3, 5))
    tied[0, [0, 2]] = 1  # its own, and one that is false of it
    rows = TopCaptions().rows(world(tied))
    assert (rows.values["right"][0], rows.values["true"][0], rows.values["top"][0]) == (False, 0, "t2")
    with pytest.raises(NonFiniteScoresError, match=r"'i1'.*'t2'"):
        TopCaptions().rows(world(np.where(np.arange(15).reshape(3, 5) == 7, np.nan, 0.0)))


def test_equals_loops_over_a_random_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlpipe.evaluate.metrics.top_captions.STEP", 7)
    rng = np.random.default_rng(0)
    n, each = 20, 3
    described = [{"hue": f"h{rng.integers(3)}", "size": f"s{rng.integers(2)}"} for _ in range(n)]
    owner = np.repeat(np.arange(n), each)
    named = [rng.permutation(["hue", "size"])[: rng.integers(0, 3)].tolist() for _ in owner]
    texts = [" ".join(described[o][name] for name in names) + "." for o, names in zip(owner, named, strict=True)]
    scores = rng.normal(size=(n, n * each))
    scores[owner, np.arange(n * each)] += 1
    whole = torch.from_numpy(scores)
    inputs = Inputs(
        [f"i{k}" for k in range(n)],
        [f"t{k}" for k in range(n * each)],
        owner,
        lambda i, t: whole[i, t].clone(),
        columns={"role": ["caption"] * len(owner), "text": texts},
        image_columns={"attributes": described},
    )
    true = []
    for image in range(n):
        top = int(scores[image].argmax())
        fits = all(described[owner[top]][name] == described[image][name] for name in named[top])
        true.append(owner[top] == image or (bool(named[top]) and fits))
    found = numbers(inputs)
    assert found["true_recall@1"] == pytest.approx(np.mean(true))
    retrieval = Retrieval([1])
    assert found["i2t_recall@1"] == retrieval.summarise(retrieval.rows(inputs))["i2t_recall@1"]
    assert found["i2t_recall@1"] < found["true_recall@1"] < 1


def test_examples_are_images_that_two_runs_disagree_about(
    place: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = place(images=20, noise=1.5)
    for n in range(20):
        Image.new("RGB", (4, 4), (n, 0, 0)).save(made.root / f"{n}.jpg", quality=100)
    ids = made.train(), made.train("ridge", strength=1.0)
    first, other = (evaluate(made.runs, run, "top_captions") for run in ids)
    right = [dict(zip(e.rows.query_ids, e.rows.values["right"], strict=True)) for e in (first, other)]
    only = {image for image in right[0] if right[0][image] and not right[1][image]}
    picked = examples.pick(first, other, True, 50, 0)
    assert {image for image, _ in picked} == only
    assert len(examples.pick(first, other, True, 1, 0)) == min(1, len(only))
    differ = {image for image in right[0] if right[0][image] != right[1][image]}
    assert differ  # else nothing is tried below
    drawn: list[Figure] = []
    monkeypatch.setattr(examples, "save", lambda figure, path: drawn.append(figure) or path)
    (path,) = first.made_by.draw([first, other], Path("figures"))  # type: ignore[attr-defined]
    assert path.name == f"top_captions-test-{ids[0]}-{ids[1]}.png"
    words = [text.get_text() for cell in drawn[0].axes for text in cell.texts]
    assert sum(word.startswith("\u2713") for word in words) == sum(word.startswith("\u2717") for word in words)
    assert len(words) == 4 * sum(min(4, len(examples.pick(first, other, side, 4, 0))) for side in (False, True))
    assert first.made_by.draw([first], Path("figures")) == []  # type: ignore[attr-defined]
    same = replace(other, rows=Rows(first.rows.query_ids, first.rows.image, first.rows.values))
    assert first.made_by.draw([first, same], Path("figures")) == []  # type: ignore[attr-defined]
