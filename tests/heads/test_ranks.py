from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.heads.ranks import NonFiniteScoresError, Ranks, ranks

DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "clip_coco500"
Matrix = npt.NDArray[np.float64]


def of(matrix: Matrix, text_image: list[int] | npt.NDArray[np.int64], block: int = 1024) -> Ranks:
    """Ranks of a full matrix (images, texts)."""
    whole = torch.from_numpy(matrix)
    return ranks(lambda i, t: whole[i, t].clone(), np.asarray(text_image, dtype=np.int64), len(matrix), block)


def unit(rows: Matrix) -> Matrix:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def reference(matrix: Matrix, text_image: npt.NDArray[np.int64]) -> dict[str, dict[int, tuple[int, int]]]:
    """The definition, query by query over the full matrix, no ties but exact ones."""
    i2t, t2i = {}, {}
    for image in range(len(matrix)):
        own = text_image == image
        if own.any():
            best, others = matrix[image, own].max(), matrix[image, ~own]
            i2t[image] = (1 + int((others > best).sum()), 1 + int((others >= best).sum()))
    for text, image in enumerate(text_image):
        if image >= 0:
            others = np.delete(matrix[:, text], image)
            best = matrix[image, text]
            t2i[text] = (1 + int((others > best).sum()), 1 + int((others >= best).sum()))
    return {"i2t": i2t, "t2i": t2i}


def as_dicts(result: Ranks) -> dict[str, dict[int, tuple[int, int]]]:
    return {
        name: {int(q): (int(o), int(p)) for q, o, p in zip(d.query, d.optimistic, d.pessimistic, strict=True)}
        for name, d in (("i2t", result.i2t), ("t2i", result.t2i))
    }


def test_hand_sized_case() -> None:
    # 3 images; texts 0, 1 of image 0, text 2 of image 1, text 3 of none; image 2 has no text
    matrix = np.array([[0.2, 0.9, 0.9, 0.1], [0.5, 0.0, 0.3, 0.8], [0.5, 0.1, 0.3, 0.0]])
    found = as_dicts(of(matrix, [0, 0, 1, -1]))
    # image 0: best own 0.9, text 2 ties -> 1..2. image 1: own 0.3, above: 0.5, 0.8 -> 3
    assert found["i2t"] == {0: (1, 2), 1: (3, 3)}
    # text 0: own 0.2, two images at 0.5 -> 3. text 1: first. text 2: own 0.3, above 0.9, tied 0.3 -> 2..3
    assert found["t2i"] == {0: (3, 3), 1: (1, 1), 2: (2, 3)}


@settings(max_examples=60, deadline=None)
@given(
    images=st.integers(1, 9),
    texts=st.integers(1, 14),
    levels=st.integers(1, 12),
    block=st.integers(1, 16),
    seed=st.integers(0, 2**31),
)
def test_equals_the_full_matrix(images: int, texts: int, levels: int, block: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    matrix = draw.integers(-levels, levels, (images, texts)).astype(float)  # few levels: many exact ties
    text_image = draw.integers(-1, images, texts)
    assert as_dicts(of(matrix, text_image, block)) == reference(matrix, text_image)


def test_equals_the_full_matrix_on_embeddings_of_several_captions() -> None:
    draw = np.random.default_rng(3)
    images, texts = unit(draw.normal(size=(40, 8))), unit(draw.normal(size=(200, 8)))
    text_image = draw.permutation(np.repeat(np.arange(40), 5))
    texts = unit(texts + 1.2 * images[text_image])
    matrix = images @ texts.T
    expected = reference(matrix, text_image)
    assert as_dicts(of(matrix, text_image)) == expected
    left, right = torch.from_numpy(images), torch.from_numpy(texts)
    for block in (1, 7, 64):
        blockwise = ranks(lambda i, t: left[i] @ right[t].T, text_image, 40, block)
        assert as_dicts(blockwise) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("block", [7, 1024])
def test_equal_embeddings_are_all_tied(dtype: torch.dtype, block: int) -> None:
    row = torch.randn(512, generator=torch.Generator().manual_seed(0), dtype=dtype)
    rows = (row / row.norm()).repeat(100, 1)
    noise = 1 + 4 * torch.finfo(dtype).eps * torch.randn(100, 1, generator=torch.Generator().manual_seed(1))
    left, right = rows * noise.to(dtype), rows
    found = ranks(lambda i, t: left[i] @ right[t].T, np.arange(100), 100, block)
    for direction in (found.i2t, found.t2i):
        assert direction.pessimistic.tolist() == [100] * 100
        assert direction.optimistic.tolist() == [1] * 100
        assert direction.recall(1) == 0.0


def test_five_captions_all_right() -> None:
    text_image = np.repeat(np.arange(6), 5)
    found = of(np.eye(6)[:, text_image], text_image)
    assert found.i2t.recall(1) == found.t2i.recall(1) == 1.0


def test_half_the_rows_ten_times_longer() -> None:
    draw = np.random.default_rng(0)
    images, texts = draw.normal(size=(30, 6)), draw.normal(size=(30, 6))
    longer = np.where(np.arange(30) % 2, 10.0, 1.0)[:, None]
    plain = of(unit(images) @ unit(texts).T, np.arange(30))
    scaled = of(unit(images * longer) @ unit(texts * longer).T, np.arange(30))
    assert as_dicts(plain) == as_dicts(scaled)


def test_nan_rows_are_named() -> None:
    matrix = np.random.default_rng(0).normal(size=(20, 30))
    matrix[[3, 17]] = np.nan
    matrix[:, 12] = np.inf
    with pytest.raises(NonFiniteScoresError, match=r"image rows 3, 17 and text rows 12;") as caught:
        of(matrix, np.arange(30) % 20, block=8)
    assert (caught.value.images, caught.value.texts) == ([3, 17], [12])


def test_a_single_nan_pair_names_both_rows() -> None:
    matrix = np.zeros((4, 4))
    matrix[1, 2] = np.nan
    with pytest.raises(NonFiniteScoresError) as caught:
        of(matrix, np.arange(4), block=2)
    assert (caught.value.images, caught.value.texts) == ([1], [2])
    with pytest.raises(NonFiniteScoresError, match="image ids 'b' and text ids 'z'"):
        raise NonFiniteScoresError([1], [2], "abcd", "xyz")


def test_large_negative_scores_do_not_hide_ties() -> None:
    # squared distances: the matches near 0 differ by rounding of the large ones
    matrix = np.full((3, 3), -1e6)
    matrix[0] = [-1e-17, 0.0, 1e-17]
    found = of(matrix, np.arange(3), block=1)
    assert found.i2t.pessimistic[0] == 3


def test_tiles_stay_small_and_are_scored_twice_at_most() -> None:
    calls: dict[tuple[int, int], int] = {}

    def scores(i: slice, t: slice) -> Tensor:
        assert i.stop - i.start <= 16
        assert t.stop - t.start <= 16
        calls[i.start, t.start] = calls.get((i.start, t.start), 0) + 1
        return torch.zeros(i.stop - i.start, t.stop - t.start)

    ranks(scores, np.zeros(70, dtype=np.int64), 50, block=16)
    assert set(calls.values()) == {1}
    assert len(calls) == 4 * 5


def test_without_room_tiles_are_scored_again(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, text_image = np.random.default_rng(5).normal(size=(12, 20)), np.arange(20) % 12
    kept = as_dicts(of(matrix, text_image, block=5))
    monkeypatch.setattr("vlpipe.heads.ranks.KEEP_BYTES", 100)
    assert as_dicts(of(matrix, text_image, block=5)) == kept


def test_empty_sides_and_no_queries() -> None:
    for found in (of(np.zeros((0, 0)), []), of(np.zeros((3, 0)), []), of(np.ones((3, 2)), [-1, -1])):
        assert not len(found.i2t.query)
        assert not len(found.t2i.query)
        with pytest.raises(VlpipeError, match="without a single query"):
            found.i2t.recall(1)


@pytest.mark.parametrize("text_image", [[0, 3], [-2, 0]])
def test_positions_outside_are_refused(text_image: list[int]) -> None:
    with pytest.raises(UsageError, match="from -1 to 2"):
        of(np.zeros((3, 2)), text_image)


def test_wrong_shape_or_dtype_is_refused() -> None:
    for wrong in (torch.zeros(2, 3), torch.zeros(3, 2, dtype=torch.float16)):
        with pytest.raises(VlpipeError, match=r"expected \(3, 2\), float32 or float64"):
            ranks(lambda i, t, wrong=wrong: wrong, np.arange(2), 3)
    with pytest.raises(UsageError, match="block 0"):
        of(np.zeros((1, 1)), [0], block=0)


def test_real_clip_embeddings() -> None:
    if not DATA.exists():
        pytest.skip("../shared/data/clip_coco500 is not there")
    images, texts = torch.from_numpy(np.load(DATA / "clip_vit_b16_image_text.npy")).double()
    assert len(json.loads((DATA / "rows.json").read_text())) == len(images) == 500
    found = ranks(lambda i, t: images[i] @ texts[t].T, np.arange(500), 500, block=128)
    assert found.i2t.recall(1) == pytest.approx(0.552, abs=1e-9)
    assert found.t2i.recall(1) == pytest.approx(0.506, abs=1e-9)
