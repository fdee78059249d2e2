from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vlpipe.evaluate.asked import Asked
from vlpipe.evaluate.contracts import Inputs
from vlpipe.evaluate.metrics.zero_shot import ZeroShot
from vlpipe.evaluate.run import evaluate
from vlpipe.evaluate.scoring import Scorer
from vlpipe.evaluate.tasks.zero_shot import ZeroShot as Task
from vlpipe.foundation.errors import UnknownNameError, VlpipeError
from vlpipe.heads.ranks import NonFiniteScoresError
from vlpipe.heads.runs import Run, open_joined
from vlpipe.manifests.writer import write_manifest

Array = np.ndarray[Any, Any]
Place = Any


def given(scores: Array, labels: Sequence[str | None], classes: Sequence[str]) -> Inputs:
    """A prompt a class; `scores` (images, classes)."""
    whole = torch.from_numpy(scores)

    def averages(groups: Sequence[Array]) -> Callable[[slice], Tensor]:
        assert [group.tolist() for group in groups] == [[k] for k in range(len(classes))]
        return lambda rows: whole[rows]

    n = len(labels)
    return Inputs(
        [f"i{k}" for k in range(n)],
        [f"p{k}" for k in range(len(classes))],
        np.full(len(classes), -1),
        lambda i, t: whole[i, t],
        columns={"role": ["prompt"] * len(classes), "attributes": [{"label": name} for name in classes]},
        image_columns={"label": list(labels), "attributes": [{"taken_for": "b"}] * n},
        averages=averages,
    )


def numbers(inputs: Inputs, attribute: str = "") -> dict[str, float]:
    metric = ZeroShot(attribute)
    rows = metric.rows(inputs)
    found = metric.summarise(rows)
    assert set(metric.counts(rows)) == set(found)
    return found


SIX = ["a", "b", "c", "d", "e", "f"]


def test_top_one_top_five_and_mean_per_class_by_hand() -> None:
    """Of a: right, right, last. Of b: a tie with c. One image has no label, one a label without prompts."""
    rows = [[9, 1, 1, 1, 1, 1], [9, 1, 1, 1, 1, 1], [0, 1, 2, 3, 4, 5], [0, 8, 8, 0, 0, 0], [9] + [0] * 5, [9] * 6]
    inputs = given(np.array(rows, dtype=float), ["a", "a", "a", "b", None, "z"], SIX)
    assert numbers(inputs) == pytest.approx(
        {
            "top1_accuracy": 0.5,
            "top5_accuracy": 0.75,
            "top1_accuracy_optimistic": 0.75,
            "top5_accuracy_optimistic": 0.75,
            "class_accuracy": (2 / 3 + 0) / 2,
            "chance_accuracy": 1 / 6,
        }
    )
    task = Task(Task.Config())
    task.check(inputs)
    told = task.notes(numbers(inputs))
    assert told[0].startswith("2 of 6 images do not count")
    assert "top1_accuracy 0.5 to 0.75" in told[1]


def test_equal_scores_are_never_right() -> None:
    found = numbers(given(np.ones((5, 6)), list("abcde"), SIX))
    assert (found["top1_accuracy"], found["top5_accuracy"], found["class_accuracy"]) == (0.0, 0.0, 0.0)
    few = numbers(given(np.ones((2, 2)), ["a", "b"], ["a", "b"]))
    assert "top5_accuracy" not in few  # of two classes all are among the top five


def test_equals_a_loop_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlpipe.evaluate.metrics.zero_shot.STEP", 7)
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(60, 9)).round(1)
    truth = rng.integers(0, 9, 60)
    found = numbers(given(scores, [f"c{k}" for k in truth], [f"c{k}" for k in range(9)]))
    places = [sum(s >= row[t] for s in row) for row, t in zip(scores, truth, strict=True)]
    assert found["top1_accuracy"] == pytest.approx(np.mean([place == 1 for place in places]))
    assert found["top5_accuracy"] == pytest.approx(np.mean([place <= 5 for place in places]))
    by_class = [np.mean([p == 1 for p, t in zip(places, truth, strict=True) if t == k]) for k in set(truth)]
    assert found["class_accuracy"] == pytest.approx(np.mean(by_class))


def test_another_attribute_may_be_the_truth() -> None:
    scores = np.tile([0.0, 1.0, 0, 0, 0, 0], (3, 1))
    assert numbers(given(scores, [None] * 3, SIX), "taken_for")["top1_accuracy"] == 1.0
    with pytest.raises(VlpipeError, match=r"none of the 3 images has one of the 6 labels.*'a'"):
        ZeroShot().rows(given(scores, [None] * 3, SIX))
    inputs = given(scores, [None] * 3, SIX)
    with pytest.raises(VlpipeError, match="class prompts"):
        ZeroShot().rows(replace(inputs, columns={**inputs.columns, "attributes": [{}] * 6}))
    of_hue = [{"label": name, "attribute": "hue"} for name in SIX]
    inputs = replace(inputs, columns={**inputs.columns, "attributes": of_hue})
    with pytest.raises(VlpipeError, match="prompts are of hue"):
        ZeroShot().rows(inputs)
    with pytest.raises(UnknownNameError, match="hue"):
        ZeroShot("taken_for").rows(inputs)
    bad = given(np.full((1, 6), np.nan), ["a"], SIX)
    with pytest.raises(NonFiniteScoresError, match=r"'i0'.*'p0'"):
        ZeroShot().rows(bad)


@pytest.fixture
def trained(place: Callable[..., Place]) -> Place:
    """Captioned images, to train on."""
    return place()


@pytest.fixture
def classified(trained: Place, tmp_path: Path) -> Place:
    """Forty images of three classes near a direction each; a class has two prompts of very different length."""
    rng = np.random.default_rng(0)
    centre = rng.normal(size=(3, 8))
    label = np.arange(40) % 3
    x = centre[label] + 0.5 * rng.normal(size=(40, 8))
    y = np.concatenate([10 * centre + 4 * rng.normal(size=(3, 8)), centre + 0.4 * rng.normal(size=(3, 8))])
    manifest = write_manifest(
        tmp_path / "classified",
        name="classified",
        source="made",
        licence="none",
        image_root=tmp_path,
        images=[
            {"image_id": f"i{n}", "path": f"{n}.png", "split": "train" if n < 30 else "test", "label": f"l{k}"}
            for n, k in enumerate(label)
        ],
        texts=[
            {"text_id": f"p{n}", "text": f"p{n}", "role": "prompt", "attributes": {"label": f"l{n % 3}"}}
            for n in range(6)
        ],
    )
    made = replace(trained, manifest=manifest, x=x, y=y)
    made.store("image", x)
    made.store("text", y)
    return made


def unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def test_prompts_are_averaged_as_unit_vectors(trained: Place, classified: Place) -> None:
    done = evaluate(trained.runs, trained.train(), "zero_shot", "all", manifest=classified.manifest.folder)
    means = unit((unit(classified.y[:3]) + unit(classified.y[3:])) / 2)
    expected = (unit(classified.x) @ means.T).argmax(axis=1) == np.arange(40) % 3
    assert done.entries["top1_accuracy"].value == pytest.approx(expected.mean())
    assert done.entries["top1_accuracy"].rows == 40
    assert done.entries["top1_accuracy"].value > 1 / 3
    assert done.notes == []


def test_reconstructions_are_classified_through_an_autoencoder(trained: Place, classified: Place) -> None:
    """What the autoencoder gives back, encoded by hand, is what the run through it is scored on."""
    elsewhere: Any = {"split": "all", "manifest": classified.manifest.folder}
    sae = trained.train("sae", latents=16, k=2, epochs=3, batch_size=8, lr=0.01)
    run = trained.train(sources=(f"image=enc:a#pooled::{sae}", "text=enc:a#pooled"))
    done = evaluate(trained.runs, run, "zero_shot", **elsewhere)
    opened = Run.open(trained.runs, sae)
    batch = open_joined(opened, classified.manifest.folder).image_batch(np.arange(40))
    rebuilt = opened.head().images(batch).x["image"].double().numpy()
    means = unit((unit(classified.y[:3]) + unit(classified.y[3:])) / 2)
    expected = (unit(rebuilt) @ means.T).argmax(axis=1) == np.arange(40) % 3
    assert done.entries["top1_accuracy"].value == pytest.approx(expected.mean())
    plain = evaluate(trained.runs, trained.train(), "zero_shot", **elsewhere)
    assert done.entries["top1_accuracy"].value != plain.entries["top1_accuracy"].value


def test_the_mean_prompt_has_the_mean_length(trained: Place, classified: Place) -> None:
    """For heads that read lengths: a mask, a standardised row."""
    run, folder = Run.open(trained.runs, trained.train()), classified.manifest.folder
    joined = open_joined(run, folder)
    images, texts = Asked.of(joined, "test", ["prompt"], folder).usable()
    seen: list[Tensor] = []
    head = run.head().double()
    texts_of = head.texts
    head.texts = lambda batch: seen.append(batch.x["text"]) or texts_of(batch)  # type: ignore[method-assign,func-returns-value]
    scores = Scorer(head, joined, images, texts).averages([np.array([0, 3]), np.array([1])])
    assert scores(slice(0, 4)).shape == (4, 2)
    lengths = torch.from_numpy(np.linalg.norm(classified.y, axis=1))
    assert seen[0].norm(dim=1).tolist() == pytest.approx([float(lengths[[0, 3]].mean()), float(lengths[1])])
