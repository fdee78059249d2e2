from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlpipe.evaluate.contracts import METRICS, Inputs
from vlpipe.evaluate.metrics.retrieval import Retrieval, per_image_sensitivity
from vlpipe.foundation.errors import UsageError, VlpipeError

DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "clip_coco500"
Matrix = npt.NDArray[np.float64]


def inputs(matrix: Matrix, text_image: npt.ArrayLike) -> Inputs:
    """Inputs over a full matrix (images, texts), with ids i0, i1, ... and t0, t1, ..."""
    whole = torch.from_numpy(matrix)
    images, texts = matrix.shape
    return Inputs(
        [f"i{n}" for n in range(images)],
        [f"t{n}" for n in range(texts)],
        np.asarray(text_image, dtype=np.int64),
        lambda i, t: whole[i, t].clone(),
    )


def numbers(matrix: Matrix, text_image: npt.ArrayLike, ks: tuple[int, ...] = (1, 5, 10)) -> dict[str, float]:
    metric = Retrieval(ks)
    return metric.summarise(metric.rows(inputs(matrix, text_image)))


def by_hand(matrix: Matrix, text_image: Matrix, ks: tuple[int, ...]) -> dict[str, float]:
    """The definitions in loops over the full matrix; ties count against the query."""
    i2t, t2i, per_image = [], [], {}
    for image, row in enumerate(matrix):
        own = [j for j, i in enumerate(text_image) if i == image]
        if own:
            best = max(row[j] for j in own)
            i2t.append(1 + sum(row[j] >= best for j in range(len(row)) if j not in own))
    for text, image in enumerate(text_image):
        if image >= 0:
            rank = 1 + sum(matrix[i, text] >= matrix[image, text] for i in range(len(matrix)) if i != image)
            t2i.append(rank)
            per_image.setdefault(image, []).append(rank)
    found = {"i2t_median_rank": float(np.median(i2t)), "t2i_median_rank": float(np.median(t2i))}
    for k in ks:
        found[f"i2t_recall@{k}"] = sum(r <= k for r in i2t) / len(i2t)
        found[f"t2i_recall@{k}"] = sum(r <= k for r in t2i) / len(t2i)
        hits = [[r <= k for r in ranks] for ranks in per_image.values()]
        found[f"mean_caption_recall@{k}"] = sum(sum(h) / len(h) for h in hits) / len(hits)
        found[f"worst_caption_recall@{k}"] = sum(min(h) for h in hits) / len(hits)
    several = [ranks for ranks in per_image.values() if len(ranks) > 1]
    if several:
        found["rank_std"] = sum(float(np.std(r)) for r in several) / len(several)
        found["worst_gap"] = sum(max(r) - min(r) for r in several) / len(several)
    return found


def test_worked_out_on_paper() -> None:
    # t0, t1, t2 of i0; t3 of i1; i2 without text
    matrix = np.array([[0.9, 0.2, 0.5, 0.8], [0.1, 0.3, 0.5, 0.7], [0.0, 0.4, 0.1, 0.1]])
    found = numbers(matrix, [0, 0, 0, 1], ks=(1, 2))
    assert found["i2t_recall@1"] == 1.0  # i0: t0 first; i1: t3 first
    # t2i ranks: t0 1; t1 3 (0.3 and 0.4 above); t2 2 (tied with i1), 1 at best; t3 2 (0.8 above)
    assert found["t2i_recall@1"] == 0.25
    assert found["t2i_recall@1_optimistic"] == 0.5
    assert found["t2i_recall@2"] == 0.75
    assert found["t2i_median_rank"] == 2.0
    assert found["mean_caption_recall@2"] == pytest.approx((2 / 3 + 1) / 2)
    assert found["worst_caption_recall@2"] == 0.5
    assert found["rank_std"] == pytest.approx(np.sqrt(2 / 3))  # population std of 1, 3, 2; i1 has one caption
    assert found["worst_gap"] == 2.0


@settings(max_examples=40, deadline=None)
@given(images=st.integers(2, 8), texts=st.integers(2, 20), seed=st.integers(0, 2**31), levels=st.integers(2, 50))
def test_equals_the_loops(images: int, texts: int, seed: int, levels: int) -> None:
    draw = np.random.default_rng(seed)
    text_image = draw.integers(-1, images, texts)
    text_image[0] = 0
    matrix = draw.integers(0, levels, (images, texts)).astype(float)
    found = numbers(matrix, text_image, ks=(1, 2))
    expected = by_hand(matrix, text_image, (1, 2))
    assert found.keys() - expected.keys() == {n for n in found if n.endswith("_optimistic")}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    assert all(found[n] <= found[n + "_optimistic"] for n in found if "2i_rec" in n and n + "_optimistic" in found)


def test_rows_name_query_and_image() -> None:
    rows = Retrieval([1]).rows(inputs(np.eye(3)[:, [2, 0, 0]], [2, 0, 0]))
    assert rows.query_ids.tolist() == ["i0", "i2", "t0", "t1", "t2"]
    assert rows.image.tolist() == [0, 2, 2, 0, 0]
    assert rows.values["direction"].tolist() == [0, 0, 1, 1, 1]
    assert rows.values["rank"].tolist() == [1, 1, 1, 1, 1]
    counts = Retrieval([1]).counts(rows)
    assert (counts["i2t_recall@1"], counts["t2i_recall@1"], counts["worst_caption_recall@1"]) == (2, 3, 2)
    assert (counts["rank_std"], counts["worst_gap"]) == (1, 1)
    assert counts.keys() == Retrieval([1]).summarise(rows).keys()


def test_all_captions_right_is_one_both_ways() -> None:
    text_image = np.repeat(np.arange(12), 5)
    found = numbers(np.eye(12)[:, text_image], text_image)
    assert found["i2t_recall@1"] == found["t2i_recall@1"] == found["worst_caption_recall@1"] == 1.0
    assert found["rank_std"] == found["worst_gap"] == 0.0


def test_equal_embeddings_are_never_right() -> None:
    found = numbers(np.ones((100, 100)) / 3, np.arange(100))
    assert found["i2t_recall@1"] == found["t2i_recall@10"] == found["worst_caption_recall@10"] == 0.0
    assert found["i2t_median_rank"] == 100.0
    assert found["i2t_recall@1_optimistic"] == 1.0
    assert "rank_std" not in found  # one caption an image says nothing of sensitivity, and must not read as 0


def test_shuffled_images_are_at_chance() -> None:
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(400, 16))
    text_image = np.repeat(draw.permutation(400), 5)
    texts = np.repeat(rows, 5, axis=0) + 0.1 * draw.normal(size=(2000, 16))
    found = numbers(rows @ texts.T, text_image)
    assert found["t2i_recall@1"] < 0.01
    assert found["t2i_recall@10"] == pytest.approx(10 / 400, abs=0.012)
    assert found["t2i_median_rank"] == pytest.approx(200, abs=15)


def test_nan_names_the_ids() -> None:
    matrix = np.ones((3, 4))
    matrix[2] = np.nan
    with pytest.raises(VlpipeError, match="image ids 'i2';"):
        Retrieval([1]).rows(inputs(matrix, [0, 0, 1, 2]))


def test_k_above_the_gallery_is_refused() -> None:
    with pytest.raises(VlpipeError, match=r"Recall@10 of a gallery of 4 images.*--set 'ks=\[1\]'"):
        Retrieval().rows(inputs(np.ones((4, 20)), np.arange(20) % 4))
    with pytest.raises(VlpipeError, match="Recall@10 of a gallery of 5 texts"):
        Retrieval().rows(inputs(np.ones((20, 5)), np.arange(5)))
    for ks in ([], [0]):
        with pytest.raises(UsageError, match="whole numbers from 1"):
            Retrieval(ks)


def test_sensitivity_of_each_image() -> None:
    std, gap = per_image_sensitivity(np.array([1, 7, 4, 3, 3]), np.array([5, 2, 5, 5, 0]))
    assert std.tolist() == pytest.approx([np.std([1, 4, 3])])
    assert gap.tolist() == [3.0]


def test_real_clip_embeddings() -> None:
    if not DATA.exists():
        pytest.skip("../shared/data/clip_coco500 is not there")
    assert len(json.loads((DATA / "rows.json").read_text())) == 500
    images, texts = np.load(DATA / "clip_vit_b16_image_text.npy").astype(float)
    found = METRICS.load("retrieval")()
    values = found.summarise(found.rows(inputs(images @ texts.T, np.arange(500))))
    assert values["i2t_recall@1"] == pytest.approx(0.552, abs=1e-9)
    assert values["t2i_recall@1"] == pytest.approx(0.506, abs=1e-9)
