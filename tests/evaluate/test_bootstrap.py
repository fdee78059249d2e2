from __future__ import annotations

import time

import numpy as np
import pytest

from vlpipe.evaluate.bootstrap import Bootstrap, Spread, spread
from vlpipe.evaluate.contracts import Rows
from vlpipe.evaluate.metrics.retrieval import Retrieval


def rows_of(values: np.ndarray, image: np.ndarray) -> Rows:
    ids = np.array([f"q{n}" for n in range(len(image))], dtype=object)
    return Rows(ids, image.astype(np.int64), {"value": values})


def mean(rows: Rows) -> dict[str, float]:
    return {"mean": float(rows.values["value"].mean())}


def worst(rows: Rows) -> dict[str, float]:
    """A number that needs each image's rows kept apart: mean over images of their largest value."""
    largest: dict[int, float] = {}
    for image, value in zip(rows.image.tolist(), rows.values["value"].tolist(), strict=True):
        largest[image] = max(largest.get(image, -np.inf), value)
    return {"worst": sum(largest.values()) / len(largest)}


def test_equals_a_slow_loop() -> None:
    draw = np.random.default_rng(4)
    image = draw.permutation(np.repeat([10, 3, 7, 8, 40], [1, 4, 2, 5, 3]))
    values = draw.normal(size=len(image))
    found = Bootstrap(replicates=200, seed=9).intervals(rows_of(values, image), worst)

    names = sorted(set(image.tolist()))
    same = np.random.default_rng(9)
    replicates = []
    for _ in range(200):
        picked = [names[i] for i in same.integers(0, 5, 5)]  # an image drawn twice counts twice
        replicates.append(np.mean([max(v for v, i in zip(values, image, strict=True) if i == p) for p in picked]))
    low, high = np.percentile(replicates, [2.5, 97.5])
    assert found["worst"] == pytest.approx((low, high), abs=1e-12)


def test_each_draw_is_an_image_of_its_own_with_all_its_rows() -> None:
    image = np.array([0, 1, 1, 2, 2, 2])
    for draw in Bootstrap(replicates=50).draws(rows_of(image * 10.0, image)):
        assert np.unique(draw.image).tolist() == [0, 1, 2]
        for copy in range(3):
            held = draw.values["value"][draw.image == copy]
            assert len(set(held)) == 1
            assert len(held) == held[0] / 10 + 1


def test_seeded() -> None:
    rows = rows_of(np.random.default_rng(0).normal(size=50), np.arange(50) // 2)
    assert Bootstrap(100, 1).intervals(rows, mean) == Bootstrap(100, 1).intervals(rows, mean)
    assert Bootstrap(100, 1).intervals(rows, mean) != Bootstrap(100, 2).intervals(rows, mean)


def test_covers_the_truth_where_rows_of_an_image_agree() -> None:
    draw = np.random.default_rng(0)
    image = np.repeat(np.arange(60), 4)
    hits, narrow = 0, 0
    for _ in range(200):
        values = np.repeat(draw.normal(size=60), 4) + 0.1 * draw.normal(size=240)
        low, high = Bootstrap(150, 0).intervals(rows_of(values, image), mean)["mean"]
        hits += low <= 0 <= high
        low, high = Bootstrap(150, 0).intervals(rows_of(values, np.arange(240)), mean)["mean"]
        narrow += low <= 0 <= high
    assert 0.9 <= hits / 200 <= 0.99
    assert narrow / 200 < 0.8  # resampling captions instead of images would be far too sure


def test_a_number_that_some_draws_lack() -> None:
    image = np.array([0, 1, 2, 2])
    ids = np.array(list("abcd"), dtype=object)
    values = {"direction": np.ones(4, dtype=np.int8), "rank": np.array([1, 1, 1, 3])}
    values["rank_optimistic"] = values["rank"]
    found = Bootstrap(replicates=200).intervals(Rows(ids, image, values), Retrieval([1]).summarise)
    assert found["rank_std"] == (1.0, 1.0)
    assert found["t2i_recall@1"][0] < 0.75 < found["t2i_recall@1"][1]
    assert Bootstrap().intervals(rows_of(np.zeros(0), np.zeros(0)), mean) == {}


def test_a_thousand_images_of_five_captions_take_seconds() -> None:
    draw = np.random.default_rng(0)
    image = np.concatenate([np.arange(1000), np.repeat(np.arange(1000), 5)])
    rank = draw.geometric(0.1, 6000)
    values = {"direction": (np.arange(6000) >= 1000).astype(np.int8), "rank": rank, "rank_optimistic": rank}
    rows = Rows(np.arange(6000).astype(object), image, values)
    begun = time.process_time()
    found = Bootstrap(replicates=100).intervals(rows, Retrieval().summarise)
    assert time.process_time() - begun < 3.0  # 100 of the 1,000 replicates
    assert set(found) == set(Retrieval().summarise(rows))


def test_spread_over_seeds_is_the_sample_deviation() -> None:
    assert spread([1.0, 2.0, 3.0, 6.0]) == Spread(3.0, pytest.approx(np.std([1, 2, 3, 6], ddof=1)), 4)
    assert spread([0.5]) == Spread(0.5, None, 1)
