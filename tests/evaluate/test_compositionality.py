from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from vlpipe.evaluate.bootstrap import Bootstrap
from vlpipe.evaluate.choices import shares
from vlpipe.evaluate.contracts import Inputs
from vlpipe.evaluate.distractors import distractors_of
from vlpipe.evaluate.metrics.compositionality import Compositionality
from vlpipe.evaluate.tasks.compositionality import Compositionality as Task
from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.ranks import NonFiniteScoresError

KINDS = ["replace_obj", "replace_att", "add_obj", "swap_obj"]


def asked(scores: np.ndarray[Any, Any], kinds: list[str | None], attribute: str = "subset") -> Inputs:
    """A caption and then a hard negative an image; `scores` (images, 2 x images)."""
    whole, n = torch.from_numpy(scores), len(scores)
    ids = [f"c{k}" for k in range(n)] + [f"n{k}" for k in range(n)]
    told: list[dict[str, str]] = [{attribute: kind} if kind else {} for kind in kinds]
    return Inputs(
        [f"i{k}" for k in range(n)],
        ids,
        np.tile(np.arange(n), 2),
        lambda i, t: whole[i, t].clone(),
        columns={
            "role": ["caption"] * n + ["hard_negative"] * n,
            "source_text_id": [None] * n + ids[:n],
            "attributes": [{}] * n + told,
            "text": ids,
        },
        pairs=lambda i, t: whole[torch.from_numpy(i), torch.from_numpy(t)],
    )


def numbers(inputs: Inputs, metric: Compositionality | None = None) -> dict[str, float]:
    metric = metric or Compositionality()
    rows = metric.rows(inputs)
    found = metric.summarise(rows)
    assert set(metric.counts(rows)) == set(found)
    return found


def four_images() -> np.ndarray[Any, Any]:
    """Own captions score 0.9, 0.8, 0.7, 0.6 and the others' 0.1; own negatives 0.5, but image 2's ties."""
    scores = np.full((4, 8), 0.1)
    scores[range(4), range(4)] = [0.9, 0.8, 0.7, 0.6]
    scores[range(4), range(4, 8)] = [0.5, 0.5, 0.7, 0.5]
    return scores


def test_a_tie_is_wrong_and_averages_are_over_negatives_or_families() -> None:
    """Right, right, a tie, right: of replace 2 of 2, of add 0 of 1, of swap 1 of 1."""
    assert numbers(asked(four_images(), [*KINDS])) == pytest.approx(
        {
            f"{way}_recall@1{end}": value
            for way in ("binary", "choice5")
            for end, value in {
                "": 0.75,
                "_macro": 2 / 3,
                ":replace": 1.0,
                ":add": 0.0,
                ":swap": 1.0,
                ":replace_obj": 1.0,
                ":replace_att": 1.0,
                ":add_obj": 0.0,
                ":swap_obj": 1.0,
            }.items()
        }
    )


def test_a_caption_of_another_image_turns_the_five_way_choice_only() -> None:
    """With four images all others are drawn: image 0 ties with caption 3."""
    scores = four_images()
    scores[0, 3] = 0.9
    found = numbers(asked(scores, [*KINDS]))
    assert (found["binary_recall@1"], found["choice5_recall@1"]) == (0.75, 0.5)
    assert (found["binary_recall@1:replace"], found["choice5_recall@1:replace"]) == (1.0, 0.5)


def test_equal_scores_are_never_right() -> None:
    found = numbers(asked(np.ones((6, 12)), ["add_obj"] * 6))
    assert set(found.values()) == {0.0}
    rounded = np.ones((6, 12))
    rounded[:, :6] += 1e-15  # what two orders of the same sum differ by
    assert set(numbers(asked(rounded, ["add_obj"] * 6)).values()) == {0.0}


def test_negatives_by_rules_have_kinds_too_and_others_are_families_of_their_own() -> None:
    found = numbers(asked(four_images(), ["swap_att", "swap_att", None, "tense"], "rule"))
    assert found["binary_recall@1"] == 0.75
    assert found["binary_recall@1_macro"] == 1.0  # of swap and tense: the negative without a kind is in neither
    assert {name.partition(":")[2] for name in found} == {"", "swap", "swap_att", "tense"}
    plain = numbers(asked(four_images(), [None] * 4))
    assert set(plain) == {"binary_recall@1", "choice5_recall@1"}
    assert "no kinds of negatives" in Task(Task.Config()).notes(plain)[0]


def test_fewer_than_four_images_have_no_five_way_choice() -> None:
    found = numbers(asked(four_images()[:3, [0, 1, 2, 4, 5, 6]], KINDS[:3]))
    assert not any(name.startswith("choice5") for name in found)
    assert found["binary_recall@1"] == pytest.approx(2 / 3)
    assert "four images" in Task(Task.Config()).notes(found)[0]


def test_equals_a_loop_over_random_scores_with_several_negatives_a_caption() -> None:
    rng = np.random.default_rng(0)
    images, captions, negatives = 12, 30, 70
    owner = rng.integers(0, images, captions)
    source = rng.integers(0, captions, negatives)
    scores = rng.normal(size=(images, captions + negatives)).round(1)  # ties do happen
    kinds = rng.choice(KINDS, negatives)
    whole = torch.from_numpy(scores)
    inputs = Inputs(
        [f"i{k}" for k in range(images)],
        [f"t{k}" for k in range(captions + negatives)],
        np.concatenate([owner, owner[source]]),
        lambda i, t: whole[i, t],
        columns={
            "role": ["caption"] * captions + ["hard_negative"] * negatives,
            "source_text_id": [None] * captions + [f"t{k}" for k in source],
            "attributes": [{}] * captions + [{"subset": str(kind)} for kind in kinds],
            "text": [f"t{k}" for k in range(captions + negatives)],
        },
        pairs=lambda i, t: whole[torch.from_numpy(i), torch.from_numpy(t)],
    )
    metric = Compositionality(seed=3)
    others = distractors_of(inputs, owner[source], 3, 3)
    rows = metric.rows(inputs)
    for n in range(negatives):
        mine = scores[owner[source[n]]]
        assert rows.values["binary"][n] == (mine[source[n]] > mine[captions + n])
        wrong = [captions + n, *others[n]]
        assert rows.values["choice5"][n] == all(mine[source[n]] > mine[other] for other in wrong)
    assert rows.image.tolist() == owner[source].tolist()
    found = metric.summarise(rows)
    for kind in KINDS:
        of_kind = [bool(rows.values["choice5"][n]) for n in range(negatives) if kinds[n] == kind]
        assert found[f"choice5_recall@1:{kind}"] == pytest.approx(np.mean(of_kind))


def test_drawn_captions_are_of_three_other_images_and_depend_on_the_seed() -> None:
    rng = np.random.default_rng(1)
    owner = np.concatenate([np.arange(9), rng.integers(0, 9, 40), [-1, -1]])
    inputs = Inputs(
        [f"i{k}" for k in range(9)],
        [f"t{k}" for k in range(51)],
        owner,
        lambda i, t: torch.zeros(1),
        columns={"role": ["caption"] * 51, "text": [f"text {k}" for k in range(51)]},
    )
    images = np.tile(np.arange(9), 500)
    drawn = distractors_of(inputs, images, 3, 5)
    of = owner[drawn]
    assert (of >= 0).all()
    assert (of != images[:, None]).all()
    assert all(len(set(row)) == 3 for row in of.tolist())
    again, other = distractors_of(inputs, images, 3, 5), distractors_of(inputs, images, 3, 6)
    assert (drawn == again).all()
    assert (drawn != other).any()
    times = np.bincount(of.ravel(), minlength=9)  # 1,500 draws of each image are expected
    assert (abs(times - 1500) < 200).all()
    assert len(np.unique(drawn)) == 49  # every caption of an image is drawn some time


def test_a_caption_that_is_the_images_too_is_never_drawn() -> None:
    """Of seven images five say "a" or "b"; image 0 says both, so that only 4, 5 and 6 say something else."""
    owner = np.array([0, 0, 1, 2, 3, 3, 4, 4, 5, 6])
    texts = ["a", "b", "a", "b", "a", "b", "a", "c", "d", "e"]
    inputs = Inputs(
        [f"i{k}" for k in range(7)],
        [f"t{k}" for k in range(10)],
        owner,
        lambda i, t: torch.zeros(1),
        columns={"role": ["caption"] * 10, "text": texts},
    )
    images = np.tile(np.arange(7), 300)
    drawn = distractors_of(inputs, images, 3, 0)
    for image, row in zip(images, drawn, strict=True):
        own = {texts[place] for place in np.flatnonzero(owner == image)}
        assert len(set(owner[row]) - {image}) == 3
        assert not own & {texts[place] for place in row}
    assert {tuple(sorted(row)) for row in drawn[images == 0]} == {(7, 8, 9)}
    assert len(np.unique(drawn)) == 10
    fewer = replace(inputs, columns={**inputs.columns, "text": [*texts[:-1], "b"]})
    drawn = distractors_of(fewer, images, 3, 0)
    assert (drawn[images == 0] == -1).all()
    assert (drawn[images == 5] >= 0).all()


def test_a_negative_without_other_captions_counts_in_the_binary_choice_alone() -> None:
    inputs = asked(four_images(), [*KINDS])
    inputs = replace(inputs, columns={**inputs.columns, "text": ["a", "a", "b", "c", *"wxyz"]})
    rows = Compositionality().rows(inputs)
    assert rows.values["choice5"].tolist() == [-1, -1, 0, 1]  # to captions 2 and 3 all others are other texts
    assert Compositionality().counts(rows)["choice5_recall@1"] == 2
    assert Compositionality().counts(rows)["binary_recall@1"] == 4


def test_intervals_resample_images_with_all_their_negatives() -> None:
    scores = four_images()
    rows = Compositionality().rows(asked(scores, [*KINDS]))
    low, high = Bootstrap(200).intervals(rows, Compositionality().summarise)["binary_recall@1"]
    assert 0.0 < low < 0.75 < high <= 1.0


def test_what_cannot_be_asked() -> None:
    inputs = asked(four_images(), [*KINDS])
    strange = {**inputs.columns, "source_text_id": [None] * 4 + ["c1", "x", "n0", "c2"]}  # of others, or of none
    with pytest.raises(VlpipeError, match="no text of the split is a hard negative"):
        Compositionality().rows(replace(inputs, columns=strange))
    with pytest.raises(VlpipeError, match="vlpipe manifest negatives"):
        Compositionality().rows(replace(inputs, columns={**inputs.columns, "role": ["caption"] * 8}))
    bad = four_images()
    bad[1, 5] = np.nan
    with pytest.raises(NonFiniteScoresError, match=r"'i1'.*'n1'"):
        Compositionality().rows(asked(bad, [*KINDS]))


def test_shares_leave_small_and_unnamed_groups_out() -> None:
    hits = np.array([True, False, True, True])
    names = np.array(["b", "b", "a", None], dtype=object)
    assert shares(hits, names) == {"a": (1.0, 1), "b": (0.5, 2)}
    assert shares(hits, names, least=2) == {"b": (0.5, 2)}
    assert shares(hits[:0], names[:0]) == {}
