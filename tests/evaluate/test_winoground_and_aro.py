from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from vlpipe.evaluate.contracts import Inputs
from vlpipe.evaluate.metrics.aro import Aro
from vlpipe.evaluate.metrics.winoground import Winoground
from vlpipe.evaluate.tasks.aro import Aro as AroTask
from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.ranks import NonFiniteScoresError

Array = np.ndarray[Any, Any]


def numbers(metric: Any, inputs: Inputs) -> dict[str, float]:
    rows = metric.rows(inputs)
    found: dict[str, float] = metric.summarise(rows)
    assert set(metric.counts(rows)) == set(found)
    return found


def groups(scores: Array, tags: list[str] | None = None) -> Inputs:
    """Two images and captions a group: `scores` (groups, 2 images, 2 captions)."""
    n = len(scores)
    whole = torch.full((2 * n, 2 * n), -9.0, dtype=torch.float64)
    for g in range(n):
        whole[2 * g : 2 * g + 2, 2 * g : 2 * g + 2] = torch.from_numpy(scores[g])
    told: list[dict[str, str]] = [{"collapsed_tag": tag} for tag in tags or [] for _ in range(2)]
    return Inputs(
        [f"i{k}" for k in range(2 * n)],
        [f"c{k}" for k in range(2 * n)],
        np.arange(2 * n),
        lambda i, t: whole[i, t],
        columns={
            "role": ["caption"] * 2 * n,
            "group_id": [f"g{k // 2}" for k in range(2 * n)],
            "attributes": told or [{}] * 2 * n,
        },
        pairs=lambda i, t: whole[torch.from_numpy(i), torch.from_numpy(t)],
    )


RIGHT = [[0.9, 0.1], [0.1, 0.9]]  # [image][caption]
TEXT_ONLY = [[0.9, 0.8], [0.1, 0.2]]  # each image likes its caption better, caption 1 likes image 0 better
TIED = [[0.5, 0.5], [0.1, 0.9]]  # image 0 cannot tell its captions apart


def test_text_image_and_group_scores_by_hand() -> None:
    given = groups(np.array([RIGHT, TEXT_ONLY, TIED, RIGHT]), ["Object", "Relation", "Object", "Both"])
    found = numbers(Winoground(), given)
    assert found["text_score"] == 0.75
    assert found["image_score"] == 0.75  # TIED: 0.5 > 0.1 and 0.9 > 0.5
    assert found["group_score"] == 0.5
    assert found["caption_accuracy"] == 7 / 8
    assert (found["text_score:Object"], found["text_score:Relation"], found["text_score:Both"]) == (0.5, 1.0, 1.0)
    assert found["image_score:Relation"] == 0.0
    assert found["caption_accuracy:Relation"] == 0.5
    rows = Winoground().rows(given)
    assert Winoground().counts(rows)["caption_accuracy"] == 8
    assert rows.query_ids.tolist() == ["g0", "g1", "g2", "g3"]


def test_winoground_equals_a_loop() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(60, 2, 2)).round(1)
    found = numbers(Winoground(), groups(scores))
    text = [s[0, 0] > s[0, 1] and s[1, 1] > s[1, 0] for s in scores]
    image = [s[0, 0] > s[1, 0] and s[1, 1] > s[0, 1] for s in scores]
    captions = [hit for s in scores for hit in (s[0, 0] > s[1, 0], s[1, 1] > s[0, 1])]
    assert found["text_score"] == pytest.approx(np.mean(text))
    assert found["image_score"] == pytest.approx(np.mean(image))
    assert found["group_score"] == pytest.approx(np.mean([t and i for t, i in zip(text, image, strict=True)]))
    assert found["caption_accuracy"] == pytest.approx(np.mean(captions))


def test_equal_scores_and_incomplete_groups() -> None:
    assert set(numbers(Winoground(), groups(np.ones((3, 2, 2)))).values()) == {0.0}
    given = groups(np.array([RIGHT, RIGHT, RIGHT]))
    broken = {**given.columns, "group_id": ["g0", "g0", "g1", None, "g2", "g2"]}
    rows = Winoground().rows(replace(given, columns=broken))
    assert rows.query_ids.tolist() == ["g0", "g2"]
    shared = replace(given, text_image=np.array([0, 0, 2, 3, 4, 5]))  # two captions of one image are no group
    assert Winoground().rows(shared).query_ids.tolist() == ["g1", "g2"]
    with pytest.raises(VlpipeError, match="vlpipe manifest build winoground"):
        Winoground().rows(replace(given, columns={**given.columns, "group_id": [None] * 6}))
    bad = np.array([RIGHT, RIGHT])
    bad[1, 0, 1] = np.inf
    with pytest.raises(NonFiniteScoresError, match=r"'i2'.*'c3'"):
        Winoground().rows(groups(bad))


def false(scores: Array, told: list[dict[str, str]], each: int = 1) -> Inputs:
    """A caption an image, then `each` false texts of it: `scores` (images, 1 + each) with its own texts."""
    n = len(scores)
    whole = torch.full((n, n * (1 + each)), -9.0, dtype=torch.float64)
    for k in range(n):
        whole[k, k] = scores[k, 0]
        whole[k, n + k * each : n + (k + 1) * each] = torch.from_numpy(scores[k, 1:])
    roles = ["hard_negative"] if each == 1 else [f"perturbed:{r}" for r in range(each)]
    return Inputs(
        [f"i{k}" for k in range(n)],
        [f"c{k}" for k in range(n)] + [f"c{k}#{r}" for k in range(n) for r in range(each)],
        np.concatenate([np.arange(n), np.repeat(np.arange(n), each)]),
        lambda i, t: whole[i, t],
        columns={
            "role": ["caption"] * n + roles * n,
            "source_text_id": [None] * n + [f"c{k}" for k in range(n) for _ in range(each)],
            "attributes": told + [one for one in told for _ in range(each)],
        },
        pairs=lambda i, t: whole[torch.from_numpy(i), torch.from_numpy(t)],
    )


def test_relations_by_hand() -> None:
    """on: right, wrong, a tie; under: right; beside: right."""
    told = [{"relation": name} for name in ("on", "on", "on", "under", "beside")]
    scores = np.array([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5], [0.9, 0.1], [0.9, 0.1]])
    found = numbers(Aro(), false(scores, told))
    assert found == pytest.approx(
        {
            "accuracy": 0.6,
            "accuracy_macro": (1 / 3 + 1 + 1) / 3,
            "accuracy:on": 1 / 3,
            "accuracy:under": 1.0,
            "accuracy:beside": 1.0,
        }
    )
    found = numbers(Aro(["beside", "near"]), false(scores, told))
    assert found["accuracy_macro"] == pytest.approx((1 / 3 + 1) / 2)
    assert found["accuracy"] == 0.6
    (note,) = AroTask(AroTask.Config(without=["beside", "near"])).notes(found)
    assert note == "without: no group is called near"


def test_pairs_of_attributes_need_twenty_five_captions() -> None:
    told = [{"attribute_1": name, "attribute_2": "red"} for name in ["old"] * 25 + ["big"] * 24]
    scores = np.tile([0.9, 0.1], (49, 1))
    scores[:5] = 0.5
    found = numbers(Aro(), false(scores, told))
    assert found == pytest.approx({"accuracy": 44 / 49, "accuracy_macro": 0.8, "accuracy:old_red": 0.8})
    assert numbers(Aro(least=30), false(scores, told)) == pytest.approx({"accuracy": 44 / 49})
    assert numbers(Aro(least=1), false(scores, told))["accuracy_macro"] == pytest.approx(0.9)


def test_a_reordered_caption_must_lose_four_times() -> None:
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(50, 5)).round(1)
    scores[:, 0] += 1
    found = numbers(Aro(), false(scores, [{}] * 50, each=4))
    assert found == pytest.approx({"accuracy": np.mean([s[0] > max(s[1:]) for s in scores])})
    assert 0 < found["accuracy"] < 1
    assert set(numbers(Aro(), false(np.ones((4, 5)), [{}] * 4, each=4)).values()) == {0.0}
    given = false(scores, [{}] * 50, each=4)
    bare = {**given.columns, "role": ["caption"] * 250}
    with pytest.raises(VlpipeError, match="vlpipe manifest build aro"):
        Aro().rows(replace(given, columns=bare))
