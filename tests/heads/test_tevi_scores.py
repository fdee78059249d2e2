from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from vlpipe.heads import tevi_scores
from vlpipe.heads.tevi_losses import info_nce, own_cosines
from vlpipe.heads.tevi_scores import edited_cosines, edited_rows, own_pairs

Array = np.ndarray[Any, np.dtype[Any]]
SIZES = [(7, 5, 26, 12, 18), (4, 6, 30, 20, 9), (1, 1, 3, 3, 2), (3, 2, 8, 1, 5)]  # images, texts, latents, K, d


def drawn(sizes: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 0) -> dict[str, torch.Tensor]:
    """Codes, a dictionary, masks and unit texts."""
    n, m, latents, k, d = sizes
    g = torch.Generator().manual_seed(seed)
    values = torch.rand(n, k, generator=g, dtype=torch.float64)
    values[0, k // 2 :] = 0  # a code with fewer active latents
    texts = torch.randn(m, d, generator=g, dtype=torch.float64)
    made = {
        "values": values,
        "decoder": torch.randn(latents, d, generator=g, dtype=torch.float64),
        "bias": torch.randn(d, generator=g, dtype=torch.float64),
        "keep": torch.rand(m, latents, generator=g, dtype=torch.float64),
        "texts": texts / texts.norm(dim=1, keepdim=True),
    }
    indices = torch.stack([torch.randperm(latents, generator=g)[:k] for _ in range(n)])
    return {name: value.to(dtype) for name, value in made.items()} | {"indices": indices}


def edited_by_hand(x: dict[str, Array], i: int, mask: Array) -> Array:
    """Eq. 9 for one image and one mask, latent by latent."""
    found = x["bias"].copy()
    for value, latent in zip(x["values"][i], x["indices"][i], strict=True):
        found = found + value * mask[latent] * x["decoder"][latent]
    return found


def cosines_by_hand(given: dict[str, torch.Tensor]) -> Array:
    x = {name: value.detach().numpy() for name, value in given.items()}
    found = np.zeros((len(x["values"]), len(x["texts"])))
    for i in range(len(x["values"])):
        for j, text in enumerate(x["texts"]):
            v = edited_by_hand(x, i, x["keep"][j])
            found[i, j] = v @ text / (np.linalg.norm(v) + 1e-12)
    return found


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("room", [1, 2 << 20])
def test_scores_equal_editing_every_pair(
    sizes: tuple[int, ...], room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tevi_scores, "CPU_BYTES", room)
    given = drawn(sizes)
    np.testing.assert_allclose(edited_cosines(**given), cosines_by_hand(given), atol=1e-12)
    single = drawn(sizes, torch.float32)
    np.testing.assert_allclose(edited_cosines(**single), cosines_by_hand(given), atol=1e-5)


@pytest.mark.parametrize("sizes", SIZES[:2])
def test_gradients_of_scores(sizes: tuple[int, ...]) -> None:
    given = drawn(sizes)
    keep, texts = (given.pop(name).requires_grad_() for name in ("keep", "texts"))
    assert torch.autograd.gradcheck(lambda k, t: edited_cosines(**given, keep=k, texts=t), (keep, texts))
    own = drawn((4, 4, *sizes[2:]))
    mask = own["keep"].requires_grad_()
    names = ("values", "indices", "decoder", "bias")
    assert torch.autograd.gradcheck(lambda k: edited_rows(*(own[n] for n in names), k), (mask,))


def test_edited_rows_are_the_diagonal_of_pairs() -> None:
    given = drawn((6, 6, 20, 5, 8))
    x = {name: value.numpy() for name, value in given.items()}
    texts = given.pop("texts")
    rows = edited_rows(**given)
    for i in range(6):
        np.testing.assert_allclose(rows[i], edited_by_hand(x, i, x["keep"][i]), atol=1e-12)
    diagonal = (rows / rows.norm(dim=1, keepdim=True) * texts).sum(dim=1)
    torch.testing.assert_close(edited_cosines(**given, texts=texts).diagonal(), diagonal)


def test_nothing_kept_of_a_dictionary_without_bias_scores_zero() -> None:
    given = drawn((3, 2, 8, 4, 5))
    given["bias"].zero_()
    given["keep"].zero_()
    keep = given["keep"].requires_grad_()
    scores = edited_cosines(**given)
    assert (scores == 0).all()
    scores.sum().backward()  # type: ignore[no-untyped-call]
    assert keep.grad is not None
    assert torch.isfinite(keep.grad).all()


def cancelling(share: float, dtype: torch.dtype, seed: int = 3) -> dict[str, torch.Tensor]:
    """Image 0 is all but the bias's opposite (a `share` is left), and so are two latents of image 1."""
    given = drawn((4, 6, 12, 3, 9), seed=seed)
    given["keep"].fill_(1)
    given["indices"][0] = torch.tensor([2, 5, 7])
    given["bias"] = -(given["values"][0, :, None] * given["decoder"][[2, 5, 7]]).sum(0) * (1 - share)
    given["indices"][1] = torch.tensor([0, 1, 3])
    given["decoder"][0] = -given["decoder"][1] * (1 - share) - given["bias"]
    given["values"][1] = torch.tensor([1.0, 1.0, 0.0])
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in given.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", [0.3, 1e-2, 1e-3, 1e-5])
def test_rows_that_nearly_vanish_keep_their_cosine(share: float, dtype: torch.dtype) -> None:
    given = cancelling(share, dtype)
    expected = cosines_by_hand({name: v.double() if v.is_floating_point() else v for name, v in given.items()})
    atol = 2e-5 if dtype == torch.float32 else max(1e-12, 1e-15 / share**2)
    np.testing.assert_allclose(edited_cosines(**given), expected, atol=atol)
    own = {name: value[:4] if name in ("keep", "texts") else value for name, value in given.items()}
    np.testing.assert_allclose(own_pairs(**own), expected.diagonal(), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(20))
def test_rows_whose_parts_cancel_are_zero(dtype: torch.dtype, seed: int) -> None:
    given = cancelling(0.0, dtype, seed)
    keep, texts = (given[name].requires_grad_() for name in ("keep", "texts"))
    scores = edited_cosines(**given)
    assert (scores[:2] == 0).all()
    assert scores.abs().max() <= 1 + 1e-6
    scores[:2].sum().backward()  # type: ignore[no-untyped-call]
    assert keep.grad is not None
    assert texts.grad is not None
    assert not keep.grad.any()
    assert not texts.grad.any()
    own = {name: value[:4] if name in ("keep", "texts") else value for name, value in given.items()}
    assert (own_pairs(**own)[:2] == 0).all()
    own.pop("texts")
    assert (edited_rows(**own)[:2] == 0).all()


def test_gradients_where_a_row_nearly_vanishes() -> None:
    def gradient(given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        keep, texts = (given[name].requires_grad_() for name in ("keep", "texts"))
        weights = torch.arange(24.0).reshape(4, 6).cos()
        found = torch.autograd.grad((weights * edited_cosines(**given)).sum(), (keep, texts))
        return [part.double() for part in found]

    given = cancelling(1e-3, torch.float32)  # float64 does not call it cancelled: there it is Eq. 9 and its norm
    exact = gradient({name: v.double() if v.is_floating_point() else v for name, v in given.items()})
    for found, expected in zip(gradient(given), exact, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_no_texts_or_no_images_have_no_cosines() -> None:
    given = drawn((3, 2, 8, 4, 5))
    none = {name: value[:0] if name in ("keep", "texts") else value for name, value in given.items()}
    assert edited_cosines(**none).shape == (3, 0)
    none = {name: value[:0] if name in ("values", "indices") else value for name, value in given.items()}
    assert edited_cosines(**none).shape == (0, 2)


def test_all_kept_is_the_reconstruction() -> None:
    given = drawn((3, 2, 8, 4, 5))
    given["keep"].fill_(1)
    codes = torch.zeros(3, 8, dtype=torch.float64).scatter_(1, given["indices"], given["values"])
    rows = codes @ given["decoder"] + given["bias"]
    expected = rows / rows.norm(dim=1, keepdim=True) @ given["texts"].T
    torch.testing.assert_close(edited_cosines(**given), expected)


def nce_by_hand(s: Array, scale: float) -> float:
    """Eqs. 1, 10 and 11, term by term, from cosines s[i][j] of image i with text j."""
    n, total = len(s), 0.0
    for i in range(n):
        total += math.log(math.exp(scale * s[i, i]) / sum(math.exp(scale * s[i, j]) for j in range(n)))
        total += math.log(math.exp(scale * s[i, i]) / sum(math.exp(scale * s[j, i]) for j in range(n)))
    return -total / (2 * n)


def test_both_equations_follow_the_printed_terms() -> None:
    given = drawn((5, 5, 12, 6, 7))
    x = {name: value.numpy() for name, value in given.items()}
    edited = np.array([[edited_by_hand(x, i, x["keep"][j]) for j in range(5)] for i in range(5)])
    edited /= np.linalg.norm(edited, axis=-1, keepdims=True)
    eleven = np.array([[edited[i, j] @ x["texts"][j] for j in range(5)] for i in range(5)])
    ten = np.array([[edited[i, i] @ x["texts"][j] for j in range(5)] for i in range(5)])
    assert float(info_nce(edited_cosines(**given), 9.0)) == pytest.approx(nce_by_hand(eleven, 9.0), abs=1e-9)
    texts = given.pop("texts")
    found = info_nce(own_cosines(edited_rows(**given), texts), 9.0)
    assert float(found) == pytest.approx(nce_by_hand(ten, 9.0), abs=1e-9)
    assert nce_by_hand(ten, 9.0) != pytest.approx(nce_by_hand(eleven, 9.0), abs=1e-3)


def test_gradients_of_the_loss() -> None:
    cosines = torch.rand(5, 5, dtype=torch.float64, requires_grad=True)
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(info_nce, (cosines, scale))
