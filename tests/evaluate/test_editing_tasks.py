from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vlpipe.evaluate.concepts import Concepts
from vlpipe.evaluate.contracts import METRICS, TASKS, Inputs
from vlpipe.evaluate.edits import Edits
from vlpipe.evaluate.metrics.attributes import Attributes
from vlpipe.evaluate.metrics.pair_cosines import PairCosines
from vlpipe.evaluate.metrics.specificity import Specificity, area, average_ranks
from vlpipe.foundation.errors import UnknownNameError, VlpipeError
from vlpipe.heads.contracts import Batch

VALUES = [("hue", "red"), ("hue", "blue"), ("size", "large"), ("size", "small")]
CAPTIONS = ["red", "blue-large", "small", "red-small"]
IMAGES = [("red", "large"), ("blue", "large"), ("blue", "small"), ("red", "small")]
# An axis a value: an image lies on the axes of its values, a latent is an axis.
X = torch.tensor([[1.0, 0, 1, 0], [0, 1, 1, 0], [0, 1, 0, 1], [1, 0, 0, 1]], dtype=torch.float64)


class Axes(nn.Module):
    """A head whose latents are axes: a text keeps the axes that it has values on."""

    width = latents = 4

    def keep(self, texts: Batch) -> Tensor:
        return (texts.x["text"] > 0).double()

    def edited(self, images: Batch, keep: Tensor) -> Tensor:
        return images.x["image"] * keep

    def original(self, images: Batch) -> Tensor:
        return images.x["image"] / images.x["image"].norm(dim=1, keepdim=True)

    def activations(self, images: Batch) -> Tensor:
        return images.x["image"]

    def directions(self) -> Tensor:
        return torch.eye(4)


class Rows:
    """The part of a scorer that edits need."""

    def __init__(self, x: Tensor, t: Tensor) -> None:
        self.x, self.t = x, t

    def image_rows(self, positions: Any) -> Batch:
        return Batch([""] * len(positions), {"image": self.x[positions]})

    def text_rows(self, positions: Any) -> Batch:
        return Batch([""] * len(positions), {"text": self.t[positions]})

    def vectors(self, side: str, positions: Any) -> Tensor:
        return (self.x if side == "image" else self.t)[torch.as_tensor(positions)]


def world(head: nn.Module | None = None, x: Tensor = X) -> Inputs:
    """Four images of two hues and sizes, a caption each, then the four values as prompts."""
    axis = {value: n for n, (_, value) in enumerate(VALUES)}
    words = [*(caption.split("-") for caption in CAPTIONS), *([value] for _, value in VALUES)]
    t = torch.zeros(8, 4, dtype=torch.float64)
    for row, said in enumerate(words):
        t[row, [axis[word] for word in said]] = 1
    t /= t.norm(dim=1, keepdim=True)
    rows: Any = Rows(x, t)
    editing: Any = head
    prompts = [{"attribute": a, "class": v, "label": v} for a, v in VALUES]
    return Inputs(
        [f"i{n}" for n in range(4)],
        [f"t{n}" for n in range(8)],
        np.array([0, 1, 2, 3, -1, -1, -1, -1]),
        lambda i, j: (x / x.norm(dim=1, keepdim=True))[i] @ t[j].T,
        columns={
            "role": ["caption"] * 4 + ["prompt"] * 4,
            "text": [*CAPTIONS, *(value for _, value in VALUES)],
            "attributes": [{}] * 4 + prompts,
        },
        image_columns={"attributes": [{"hue": h, "size": s} for h, s in IMAGES]},
        vectors=rows.vectors,
        edits=None if head is None else Edits(rows, editing),
    )


def numbers(metric: Any, inputs: Inputs) -> dict[str, float]:
    rows = metric.rows(inputs)
    found: dict[str, float] = metric.summarise(rows)
    assert set(metric.counts(rows)) == set(found)
    return found


def test_concepts_are_read_from_the_manifests_columns() -> None:
    found = Concepts.of(world())
    assert found.attributes == ["hue", "size"]
    assert found.truth.tolist() == [[0, 2], [1, 2], [1, 3], [0, 3]]
    assert found.named.tolist() == [[True, False], [True, True], [False, True], [True, True]]
    assert found.said.astype(int).tolist() == [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1], [1, 0, 0, 1]]
    assert found.prompts.tolist() == [4, 5, 6, 7]
    bare = world()
    with pytest.raises(VlpipeError, match="prompts=true"):
        Concepts.of(replace(bare, columns={**bare.columns, "role": ["caption"] * 8}))


def test_what_a_caption_leaves_out_is_gone_after_editing() -> None:
    """Caption 0 keeps red alone, so that size is a tie, which is no hit; caption 2 keeps small alone."""
    found = numbers(Attributes("hue"), world(Axes()))
    assert found["accuracy_original"] == found["accuracy_rebuilt"] == found["accuracy_edited_in"] == 1.0
    assert found["accuracy_edited_out:size"] == 0.0  # of image 0: large, which stands first
    assert found["accuracy_edited_out:hue"] == 0.0  # of image 2: blue, which stands second
    assert found["accuracy_category_in"] == 1.0
    assert found["accuracy_category_out"] == 0.0
    assert found["accuracy_ablated:hue"] == 0.0
    assert found["accuracy_ablated:size"] == 1.0
    assert found["chance_accuracy:hue"] == 0.5
    original = np.mean([0.5**0.5, 1.0, 0.5**0.5, 1.0])
    assert found["cosine_original"] == pytest.approx(original)
    assert found["cosine_edited"] == pytest.approx(1.0)


def test_a_mask_that_hands_over_the_label_is_told_from_one_that_does_not() -> None:
    """Nothing is left of hue in these images: a caption's value cannot bring it back through its category."""
    grey = X.clone()
    grey[:, :2] = torch.tensor([1.0, 0.9])
    found = numbers(Attributes(), world(Axes(), grey))
    assert found["accuracy_original:hue"] == 0.5
    assert found["accuracy_edited_in:hue"] == 1.0  # the mask kept the value's own axis alone
    assert found["accuracy_value_in:hue"] == 1.0
    assert found["accuracy_category_in:hue"] == pytest.approx(2 / 3)  # red, blue and red: all called red


class Learned(Axes):
    """Six latents in directions of their own; a text's mask keeps everything."""

    latents = 6

    def __init__(self, directions: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.rows, self.bias = directions, bias

    def keep(self, texts: Batch) -> Tensor:
        return torch.ones(len(texts.x["text"]), 6, dtype=torch.float64)

    def edited(self, images: Batch, keep: Tensor) -> Tensor:
        return (self.activations(images) * keep) @ self.rows + self.bias

    def activations(self, images: Batch) -> Tensor:
        return (images.x["image"] @ self.rows.T).relu()

    def directions(self) -> Tensor:
        return self.rows


@pytest.mark.parametrize("seed", range(3))
def test_a_latent_stays_if_its_nearest_concept_is_told(seed: int) -> None:
    """By loops: the value mask keeps a latent whose value is in the caption, the category mask its attribute."""
    rng = np.random.default_rng(seed)
    rows, bias, x = rng.normal(size=(6, 4)), 0.1 * rng.normal(size=4), rng.normal(size=(4, 4))
    head = Learned(torch.from_numpy(rows), torch.from_numpy(bias))
    found = numbers(Attributes(), world(head, torch.from_numpy(x)))
    stands = [max(range(4), key=lambda c: row[c] / np.linalg.norm(row)) for row in rows]  # a value is an axis
    hits: dict[str, list[bool]] = {}
    for image, caption in enumerate(CAPTIONS):
        said = [value in caption.split("-") for _, value in VALUES]
        for kind in ("value", "category"):
            edited = bias.copy()
            for latent, c in enumerate(stands):
                kept = said[c] if kind == "value" else said[c - c % 2] or said[c - c % 2 + 1]
                edited = edited + kept * max(0.0, float(x[image] @ rows[latent])) * rows[latent]
            for a, attribute in enumerate(("hue", "size")):
                best = max((2 * a, 2 * a + 1), key=lambda c: edited[c])
                end = "in" if said[2 * a] or said[2 * a + 1] else "out"
                name = f"accuracy_{kind}_{end}:{attribute}"
                hits.setdefault(name, []).append(VALUES[best][1] == IMAGES[image][a])
    assert {name for name in found if name.startswith(("accuracy_value_", "accuracy_cat")) and ":" in name} == set(
        hits
    )
    for name, those in hits.items():
        assert found[name] == pytest.approx(np.mean(those)), name


def test_a_head_that_does_not_edit_has_its_originals_only() -> None:
    found = numbers(Attributes(), world())
    assert {name.partition(":")[0] for name in found} == {
        "accuracy_original", "chance_accuracy", "cosine_original",
    }  # fmt: skip
    with pytest.raises(UnknownNameError, match="huge"):
        Attributes("huge").rows(world(Axes()))


def test_images_without_an_attribute_do_not_count() -> None:
    inputs = world(Axes())
    told = [{"hue": "red"}, {"hue": "blue", "size": "none of them"}, {}, {"hue": "red", "size": "small"}]
    found = numbers(Attributes(), replace(inputs, image_columns={"attributes": told}))
    assert found["accuracy_original:size"] == 1.0
    rows = Attributes().rows(replace(inputs, image_columns={"attributes": told}))
    assert Attributes().counts(rows)["accuracy_original:size"] == 1
    assert Attributes().counts(rows)["accuracy_original:hue"] == 3


def test_a_latent_is_specific_where_it_tells_its_value_alone() -> None:
    found = numbers(Specificity(), world(Axes()))
    assert found["auc_own"] == found["auc_own_least"] == 1.0
    assert found["auc_unrelated"] == found["auc_unrelated_most"] == 0.5
    with pytest.raises(VlpipeError, match="no latents"):
        Specificity().rows(world())


def test_area_under_the_curve_counts_pairs() -> None:
    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 6, 40).astype(float), rng.random(40) < 0.3
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[positive] for b in scores[~positive]]
    assert area(average_ranks(scores), positive) == pytest.approx(np.mean(pairs))
    assert np.isnan(area(average_ranks(scores), np.ones(40, dtype=bool)))


@pytest.mark.parametrize("name", [name for name in TASKS.names() if name not in ("alignment", "ratings")])
def test_tasks_load_with_their_metric(name: str) -> None:
    task = TASKS.load(name)
    made = task(task.Config())
    assert isinstance(made.metric(), METRICS.load(name))
    assert set(made.sides) <= {"image", "text"}
    assert made.notes({}) == []


def test_only_runs_with_a_value_mask_are_told_what_it_is_handed() -> None:
    task = TASKS.load("attributes")
    made = task(task.Config())
    (note,) = made.notes(numbers(Attributes(), world(Axes())))
    assert "as the value mask does" in note
    assert made.notes({"accuracy_original": 0.5, "accuracy_edited_in": 0.5, "accuracy_edited_out": 0.5}) == []


def test_pair_cosines_before_and_after() -> None:
    inputs = world(Axes())
    assert inputs.edits is not None
    edited = inputs.edits.edited(np.arange(4), inputs.edits.keep(np.arange(4)))
    inputs = replace(inputs, pairs=lambda i, t: (edited[i] * inputs.vectors("text", t)).sum(dim=1))
    found = numbers(PairCosines(), inputs)
    assert found == pytest.approx(
        {"cosine_original": np.mean([0.5**0.5, 1.0, 0.5**0.5, 1.0]), "cosine_edited": 1.0}
    )
    unit = X / X.norm(dim=1, keepdim=True)
    assert numbers(PairCosines(), world(x=unit)) == pytest.approx({"cosine_original": found["cosine_original"]})
