from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vlpipe.evaluate.contracts import Inputs
from vlpipe.evaluate.edits import Edits
from vlpipe.evaluate.metrics.rococo import Rococo
from vlpipe.evaluate.metrics.two_stage import TwoStage, ranks_among
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.heads.contracts import Batch
from vlpipe.heads.ranks import NonFiniteScoresError


def numbers(metric: Any, inputs: Inputs) -> dict[str, float]:
    rows = metric.rows(inputs)
    found: dict[str, float] = metric.summarise(rows)
    assert set(metric.counts(rows)) == set(found)
    return found


def altered(scores: list[list[float]]) -> Inputs:
    """Two images, a caption each, then an altered form of each in the kinds a and b."""
    whole = torch.tensor(scores, dtype=torch.float64)
    roles = ["caption", "caption", "perturbed:a", "perturbed:a", "perturbed:b", "perturbed:b"]
    return Inputs(
        ["i0", "i1"],
        [f"t{n}" for n in range(6)],
        np.array([0, 1, 0, 1, 0, 1]),
        lambda i, t: whole[i, t].clone(),
        columns={"role": roles},
    )


KINDS = ["perturbed:a", "perturbed:b", "perturbed:absent"]


def test_altered_captions_draw_images_away() -> None:
    """Image 0 falls for its own altered caption of kind a; image 1 ties with one of kind b, and loses."""
    given = altered([[0.8, 0.1, 0.9, 0.0, 0.2, 0.1], [0.3, 0.7, 0.1, 0.2, 0.0, 0.7]])
    assert numbers(Rococo(KINDS), given) == {
        "i2t_recall@1": 1.0,
        "i2t_recall@1:perturbed:a": 0.5,
        "drop:perturbed:a": 0.5,
        "relative_drop:perturbed:a": 0.5,
        "rsms:perturbed:a": 0.5,
        "i2t_recall@1:perturbed:b": 0.5,
        "drop:perturbed:b": 0.5,
        "relative_drop:perturbed:b": 0.5,
        "rsms:perturbed:b": 0.5,
    }


def test_a_miss_among_the_captions_is_no_drop() -> None:
    given = altered([[0.1, 0.8, 0.2, 0.0, 0.9, 0.1], [0.3, 0.7, 0.1, 0.2, 0.0, 0.6]])
    found = numbers(Rococo(KINDS), given)
    assert (found["i2t_recall@1"], found["drop:perturbed:a"], found["rsms:perturbed:a"]) == (0.5, 0.0, 0.0)
    assert (found["drop:perturbed:b"], found["rsms:perturbed:b"]) == (0.0, 0.5)
    with pytest.raises(VlpipeError, match="perturbed:absent"):
        Rococo(["perturbed:absent"]).rows(given)
    with pytest.raises(NonFiniteScoresError, match=r"'i1'.*'t5'"):
        Rococo(KINDS).rows(altered([[0.1] * 6, [0.3, 0.7, 0.1, 0.2, 0.0, float("nan")]]))


def test_rococo_equals_loops_over_a_random_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlpipe.evaluate.metrics.rococo.STEP", 7)
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(20, 100)) + 3 * (np.arange(100) % 20 == np.arange(20)[:, None])
    roles = ["caption"] * 60 + ["perturbed:a"] * 40
    whole = torch.from_numpy(scores)
    ids = [f"i{n}" for n in range(20)], [f"t{n}" for n in range(100)]
    given = Inputs(*ids, np.arange(100) % 20, lambda i, t: whole[i, t].clone(), columns={"role": roles})
    found = numbers(Rococo(["perturbed:a"]), given)
    first = [scores[i, :60].argmax() % 20 == i for i in range(20)]
    best = [scores[i].argmax() for i in range(20)]
    second = [text < 60 and text % 20 == i for i, text in enumerate(best)]
    assert found["i2t_recall@1"] == pytest.approx(np.mean(first))
    assert found["i2t_recall@1:perturbed:a"] == pytest.approx(np.mean(second))
    assert found["drop:perturbed:a"] == pytest.approx(np.mean(first) - np.mean(second))
    assert found["rsms:perturbed:a"] == pytest.approx(np.mean([text >= 60 for text in best]))
    assert 0 < found["rsms:perturbed:a"] < 1


class Plain(nn.Module):
    """A head whose unedited images are rows of `x`."""

    width = latents = 4

    def keep(self, texts: Batch) -> Tensor:
        raise NotImplementedError

    def edited(self, images: Batch, keep: Tensor) -> Tensor:
        raise NotImplementedError

    def original(self, images: Batch) -> Tensor:
        return images.x["image"] / images.x["image"].norm(dim=1, keepdim=True)


class Rows:
    """The part of a scorer that edits need."""

    def __init__(self, x: Tensor, t: Tensor) -> None:
        self.x, self.t = x, t

    def image_rows(self, positions: Any) -> Batch:
        return Batch([""] * len(positions), {"image": self.x[positions]})

    def vectors(self, side: str, positions: Any) -> Tensor:
        return (self.x if side == "image" else self.t)[torch.as_tensor(positions)]


def staged(n: int = 12, each: int = 2) -> tuple[Inputs, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images, captions, exact scores and plain cosines that agree only roughly."""
    g = torch.Generator().manual_seed(4)
    owner = np.repeat(np.arange(n), each)
    x = torch.randn(n, 4, generator=g, dtype=torch.float64)
    t = x[torch.from_numpy(owner)] + torch.randn(n * each, 4, generator=g, dtype=torch.float64)
    t /= t.norm(dim=1, keepdim=True)
    exact = torch.randn(n, n * each, generator=g, dtype=torch.float64)
    exact += 2 * torch.from_numpy(owner[None] == np.arange(n)[:, None])
    rows: Any = Rows(x, t)
    head: Any = Plain()
    inputs = Inputs(
        [f"i{k}" for k in range(n)],
        [f"t{k}" for k in range(n * each)],
        owner,
        lambda i, j: exact[i, j].clone(),
        columns={"role": ["caption"] * (n * each)},
        pairs=lambda i, j: exact[torch.from_numpy(i), torch.from_numpy(j)],
        vectors=rows.vectors,
        edits=Edits(rows, head),
    )
    plain = (x / x.norm(dim=1, keepdim=True) @ t.T).numpy()
    return inputs, exact.numpy(), plain


@pytest.mark.parametrize("candidates", [2, 5, 12])
def test_two_stages_equal_sorting_by_hand(candidates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlpipe.evaluate.metrics.two_stage.STEP", 5)
    inputs, exact, plain = staged()
    found = numbers(TwoStage([1, 2], candidates), inputs)
    owner = inputs.text_image
    for name, scores, cosines, matches in (
        ("i2t", exact, plain, owner[None] == np.arange(12)[:, None]),
        ("t2i", exact.T, plain.T, owner[:, None] == np.arange(12)[None]),
    ):
        hits, full = [], []
        for q in range(len(scores)):
            near = np.argsort(-cosines[q])[:candidates]
            order = near[np.argsort(-scores[q][near])]
            own = [place for place, c in enumerate(order) if matches[q, c]]
            hits.append(bool(own) and own[0] == 0)
            full.append(matches[q, scores[q].argmax()])
        assert found[f"{name}_recall@1"] == pytest.approx(np.mean(hits))
        assert found[f"{name}_recall@1_exact"] == pytest.approx(np.mean(full))
        assert found[f"{name}_recall@1_drop"] == pytest.approx(np.mean(full) - np.mean(hits))
    if candidates == 12:
        assert found["t2i_recall@1_drop"] == 0.0
        assert found["t2i_recall_reached"] == 1.0


def test_two_stages_refuse_what_they_cannot_do() -> None:
    inputs, _, _ = staged()
    with pytest.raises(UsageError, match="candidates = 5"):
        TwoStage([1, 10], 5)
    with pytest.raises(VlpipeError, match="13 candidates of a gallery of 12"):
        TwoStage([1], 13).rows(inputs)
    with pytest.raises(VlpipeError, match="does not edit"):
        TwoStage([1], 5).rows(replace(inputs, edits=None))


def test_a_rank_among_candidates_counts_ties_against_the_query() -> None:
    """Two places are open to what ties with the last candidate; a query without a match has no rank."""
    scores = np.array([[3.0, 2.0, 3.0, 4.0, 4.0], [1.0, 2.0, 3.0, 0.0, 0.0]])
    match = np.array([[True, True, False, False, False], [False] * 5])
    sure = np.array([[True, True, True, False, False], [True] * 5])
    assert ranks_among(scores, match, sure, np.array([1, 0]), 0.0).tolist() == [3, 0]
    assert ranks_among(scores, match, sure, np.array([2, 0]), 0.0).tolist() == [4, 0]
    near = scores - np.array([0, 0, 1e-14, 0, 0])
    assert ranks_among(near, match, sure, np.array([1, 0]), 1e-13).tolist() == [3, 0]
    assert ranks_among(near, match, sure, np.array([1, 0]), 0.0).tolist() == [2, 0]


def tied(seed: int, n: int = 6) -> tuple[Inputs, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Exact scores and cosines with many equal values; two captions an image, one caption of none."""
    rng = np.random.default_rng(seed)
    exact = rng.integers(0, 3, (n, 2 * n + 1)).astype(float)
    x, t = np.eye(n)[:, :4] + 1, rng.integers(0, 2, (2 * n + 1, 4)).astype(float)
    x, t = (rows / np.maximum(1e-12, np.linalg.norm(rows, axis=1, keepdims=True)) for rows in (x, t))
    rows: Any = Rows(torch.from_numpy(x), torch.from_numpy(t))
    head: Any = Plain()
    whole = torch.from_numpy(exact)
    inputs = Inputs(
        [f"i{k}" for k in range(n)],
        [f"t{k}" for k in range(2 * n + 1)],
        np.append(np.repeat(np.arange(n), 2), -1),
        lambda i, j: whole[i, j].clone(),
        pairs=lambda i, j: whole[torch.from_numpy(i), torch.from_numpy(j)],
        vectors=rows.vectors,
        edits=Edits(rows, head),
    )
    return inputs, exact, np.round(x @ t.T, 9)


def worst(scores: Any, cosines: Any, match: Any, candidates: int) -> int:
    """One query's worst rank over all ways to order equal cosines; 0 where one of them reaches no match."""
    order = sorted(range(len(cosines)), key=lambda c: (-cosines[c], match[c]))
    first = {c for c in order[:candidates] if match[c]}
    border = cosines[order[candidates - 1]]
    above = {c for c in order if cosines[c] > border and not match[c]}
    equal = [c for c in order if cosines[c] == border and not match[c]]
    best = max((scores[c] for c in first), default=None)
    if best is None:
        return 0
    lists = [above | set(more) for more in combinations(equal, candidates - len(first | above))]
    return max(1 + sum(scores[c] >= best for c in found) for found in lists)


@pytest.mark.parametrize("candidates", [1, 2, 4, 6])
@pytest.mark.parametrize("seed", range(4))
def test_ties_at_the_border_count_against_the_query(seed: int, candidates: int) -> None:
    inputs, exact, cosines = tied(seed)
    rows = TwoStage([1], candidates).rows(inputs).values
    owner, images = inputs.text_image, np.arange(6)
    expected = [worst(exact[i], cosines[i], owner == i, candidates) for i in images]
    expected += [worst(exact[:, t], cosines[:, t], images == owner[t], candidates) for t in range(12)]
    assert rows["rank"].tolist() == expected
    assert ((rows["rank"] > 0) == (rows["coarse"] <= candidates)).all()
    assert ((rows["rank"] == 0) | (rows["rank"] <= candidates)).all()


@pytest.mark.parametrize("candidates", [1, 149, 150])
def test_equal_images_are_reached_only_when_all_are_candidates(candidates: int) -> None:
    """Cosines and scores that differ in their last bits are equal, in both stages."""
    inputs, _, _ = staged(n=150, each=1)
    g = torch.Generator().manual_seed(0)
    t = torch.nn.functional.normalize(torch.randn(150, 4, generator=g, dtype=torch.float64), dim=1)
    same = torch.rand(1, 150, generator=g, dtype=torch.float64).expand(150, 150)
    noise = 2e-16 * torch.randint(0, 2, (150, 150), generator=g)
    rows: Any = Rows(torch.ones(150, 4, dtype=torch.float64), t)
    assert inputs.edits is not None
    inputs = replace(
        inputs,
        scores=lambda i, j: same[i, j].clone(),
        pairs=lambda i, j: (same + noise)[torch.from_numpy(i), torch.from_numpy(j)],
        vectors=rows.vectors,
        edits=Edits(rows, inputs.edits.head),
    )
    found = TwoStage([1], candidates).rows(inputs).values
    text = found["direction"] == 1
    assert (found["exact"][text] == 150).all()
    assert (found["coarse"][text] == 150).all()
    assert (found["rank"][text] == (150 if candidates == 150 else 0)).all()
