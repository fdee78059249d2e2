from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from vlpipe.foundation.config import resolve
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.heads.contracts import Batch, Shapes
from vlpipe.heads.kinds.cca import Cca

Array = Any


def pair(n: int = 200, p: int = 7, q: int = 5, seed: int = 0) -> tuple[Array, Array]:
    """Images and one caption each that share three directions, on scales far apart."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 3))
    x = z @ rng.normal(size=(3, p)) + rng.normal(size=(n, p))
    y = z @ rng.normal(size=(3, q)) + rng.normal(size=(n, q))
    return x * 10.0 ** rng.integers(-2, 3, p) + 5, y + 3


def solved(x: Array, y: Array, **settings: Any) -> Cca:
    head = Cca(Cca.Config(**settings), Shapes({"image": (x.shape[1],), "text": (y.shape[1],)}))
    for rows in np.array_split(np.arange(len(x)), 3):
        head.update(
            Batch([""] * len(rows), {"image": torch.from_numpy(x[rows]), "text": torch.from_numpy(y[rows])})
        )
    head.finish()
    return head.eval()


def variates(head: Cca, x: Array, y: Array) -> tuple[Array, Array]:
    left = head.images(Batch([], {"image": torch.from_numpy(x)})).x["image"]
    return left.numpy(), head.texts(Batch([], {"text": torch.from_numpy(y)})).x["text"].numpy()


def unit(y: Array) -> Array:
    return y / np.linalg.norm(y, axis=1, keepdims=True)


def test_correlations_are_those_of_two_orthonormal_bases() -> None:
    x, y = pair()
    head = solved(x, y, strength=1e-9)
    left, right = (np.linalg.qr(z - z.mean(0))[0] for z in (x, unit(y)))
    expected = np.linalg.svd(left.T @ right, compute_uv=False)
    np.testing.assert_allclose(head.get_buffer("correlations"), expected, atol=1e-7)
    assert head.report()["first_correlation"] == pytest.approx(expected[0], abs=1e-7)


def test_unweighted_variates_are_white_and_correlate_pairwise() -> None:
    x, y = pair()
    head = solved(x, y, strength=1e-9, power=0.0)
    maps = []
    for side, rows in (("image", x), ("text", unit(y))):
        scaled = (rows - head.get_buffer(f"{side}_mean").numpy()) * head.get_buffer(f"{side}_scale").numpy()
        maps.append(scaled @ head.get_buffer(f"{side}_map").numpy())
    for z in maps:
        np.testing.assert_allclose(z.T @ z, np.eye(5), atol=1e-7)
    np.testing.assert_allclose(maps[0].T @ maps[1], np.diag(head.get_buffer("correlations")), atol=1e-7)


@pytest.mark.parametrize("strength", [1e-3, 30.0])
def test_the_strength_enters_both_whitenings(strength: float) -> None:
    x, y = pair()
    head = solved(x, y, strength=strength, power=2.0, components=3)
    zs = [(z - z.mean(0)) / z.std(0) for z in (x, unit(y))]
    whitened = [np.linalg.inv(np.linalg.cholesky(z.T @ z + strength * np.eye(z.shape[1]))).T for z in zs]
    u, s, vh = np.linalg.svd(whitened[0].T @ zs[0].T @ zs[1] @ whitened[1])
    left = zs[0] @ whitened[0] @ u[:, :3] * s[:3] ** 2
    right = zs[1] @ whitened[1] @ vh[:3].T * s[:3] ** 2
    expected = unit(left) @ unit(right).T
    got_left, got_right = variates(head, x, y)
    np.testing.assert_allclose(got_left @ got_right.T, expected, atol=1e-8)
    assert (got_left[:, 3:] == 0).all()


def test_scores_do_not_depend_on_the_images_scales_or_offsets() -> None:
    x, y = pair()
    scores = [
        left @ right.T for left, right in (variates(solved(z, y, strength=3.0), z, y) for z in (x, 7 * x - 4))
    ]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-8)


def test_the_mean_of_an_images_captions_is_what_counts() -> None:
    x, y = pair(60)
    texts = torch.from_numpy(np.stack([unit(y), unit(y[::-1])], axis=1))
    mask = torch.ones(60, 2, dtype=torch.bool)
    mask[:30, 1] = False
    head = Cca(Cca.Config(strength=1.0), Shapes({"image": (7,), "text": (5,)}))
    head.update(Batch([""] * 60, {"image": torch.from_numpy(x), "text": texts}, {"text": mask}))
    head.finish()
    target = np.concatenate([unit(y)[:30], texts[30:].mean(1).numpy()])
    np.testing.assert_allclose(head.get_buffer("text_mean"), target.mean(0), atol=1e-12)


def test_constant_columns_and_copies_of_columns_stay_finite() -> None:
    x, y = pair()
    x = np.concatenate([x, np.full((200, 1), 1000.1), x[:, :2]], axis=1)
    head = solved(x, y, strength=1e-9)
    left, right = variates(head, x, y)
    assert np.isfinite(left).all()
    assert np.isfinite(right).all()
    bases = (np.linalg.qr(z - z.mean(0))[0] for z in (x[:, :7], unit(y)))
    first, second = bases
    expected = np.linalg.svd(first.T @ second, compute_uv=False)
    np.testing.assert_allclose(head.get_buffer("correlations")[:5], expected, atol=1e-6)


@pytest.mark.parametrize(("rows", "most"), [(4, 3), (200, 5)])
def test_more_components_than_there_are_is_an_error(rows: int, most: int) -> None:
    x, y = pair(rows)
    with pytest.raises(
        VlpipeError, match=rf"6 components, and {rows} training rows of widths 7 and 5 have {most}"
    ):
        solved(x, y, strength=1.0, components=6)
    assert solved(x, y, strength=1.0, components=most).report()["parameters"] == (7 + 5) * most


def test_no_validation_rows_or_a_strength_of_zero_are_errors() -> None:
    x, y = pair(20)
    with pytest.raises(VlpipeError, match="cca chooses its strength on validation images and there are none"):
        solved(x, y)
    with pytest.raises(UsageError, match="above 0"):
        resolve(Cca.Config, {"strengths": [1.0, 0.0]})
