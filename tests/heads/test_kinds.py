from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vlpipe.foundation.config import resolve
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.heads.contracts import Batch, Shapes
from vlpipe.heads.gradient import learning_rate
from vlpipe.heads.kinds.identity import Identity
from vlpipe.heads.kinds.ridge import Ridge
from vlpipe.heads.kinds.tpc import Tpc
from vlpipe.heads.ranks import Ranks, ranks
from vlpipe.heads.vectors import unit


def rows(n: int = 200, p: int = 7, q: int = 5, k: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, p) far from centred, captions (n, k, q) that follow them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p)) * rng.uniform(0.1, 10, p) + rng.uniform(-50, 50, p)
    y = (x @ rng.normal(size=(p, q)))[:, None] + rng.normal(size=(n, k, q)) + 3
    return torch.from_numpy(x), torch.from_numpy(y)


def ridge(p: int, q: int, **settings: object) -> Ridge:
    return Ridge(resolve(Ridge.Config, settings), Shapes({"image": (p,), "text": (q,)}))


def fed(head: Ridge, x: torch.Tensor, y: torch.Tensor, size: int = 64) -> Ridge:
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        mask = torch.ones(y[part].shape[:2], dtype=torch.bool)
        head.update(Batch([""] * len(x[part]), {"image": x[part], "text": y[part]}, {"text": mask}))
    return head


def plain(x: np.ndarray, y: np.ndarray, strength: float) -> tuple[np.ndarray, ...]:
    """Standardised normal equations by a plain solver, in NumPy."""
    target = (y / np.linalg.norm(y, axis=-1, keepdims=True)).mean(axis=1)
    mean, spread, center = x.mean(0), x.std(0), target.mean(0)
    z = np.divide(x - mean, spread, out=np.zeros_like(x), where=spread > 0)
    weight = np.linalg.solve(z.T @ z + strength * np.eye(x.shape[1]), z.T @ (target - center))
    return mean, center, weight


@pytest.mark.parametrize("strength", [0.01, 1.0, 3e4])
def test_ridge_equals_the_normal_equations(strength: float) -> None:
    x, y = rows()
    head = fed(ridge(7, 5, strength=strength), x, y)
    head.finish()
    mean, center, weight = plain(x.numpy(), y.numpy(), strength)
    np.testing.assert_allclose(head.mean, mean, atol=1e-8)
    np.testing.assert_allclose(head.center, center, atol=1e-8)
    np.testing.assert_allclose(head.weight, weight, atol=1e-8)


def test_ridge_scores_with_the_training_means() -> None:
    x, y = rows()
    head = fed(ridge(7, 5, strength=10.0), x[:150], y[:150])
    head.finish()
    mean, center, weight = plain(x[:150].numpy(), y[:150].numpy(), 10.0)
    new_x, new_y = x[150:].numpy(), y[150:, 0].numpy()
    left = (new_x - mean) / x[:150].numpy().std(0) @ weight
    right = new_y / np.linalg.norm(new_y, axis=1, keepdims=True) - center
    expected = left @ right.T / np.linalg.norm(left, axis=1)[:, None] / np.linalg.norm(right, axis=1)
    images = head.images(Batch([], {"image": x[150:]}))
    texts = head.texts(Batch([], {"text": y[150:, 0]}))
    np.testing.assert_allclose(head.score(images, texts), expected, atol=1e-8)


def test_ridge_does_not_depend_on_the_batch_size() -> None:
    x, y = rows()
    found = []
    for size in (1, 7, 200):
        head = fed(ridge(7, 5, strength=10.0), x, y, size)
        head.finish()
        found.append(head.weight)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-10, rtol=0)


def test_ridge_missing_captions_are_left_out_of_the_mean() -> None:
    x, y = rows(k=3)
    padded = torch.cat([y, torch.full_like(y[:, :1], 1e3)], dim=1)
    mask = torch.ones(padded.shape[:2], dtype=torch.bool)
    mask[:, 3] = False
    head, other = fed(ridge(7, 5, strength=1.0), x, y, 200), ridge(7, 5, strength=1.0)
    other.update(Batch([""] * 200, {"image": x, "text": padded}, {"text": mask}))
    head.finish()
    other.finish()
    torch.testing.assert_close(head.weight, other.weight, atol=1e-12, rtol=0)


def test_ridge_takes_the_strength_that_per_strength_solves_find_best() -> None:
    rng = np.random.default_rng(3)
    truth = rng.normal(size=(40, 8))
    x = rng.normal(size=(130, 40))
    y = (x @ truth)[:, None] + 12 * rng.normal(size=(130, 2, 8))
    x_val, y_val = x[60:], y[60:]
    strengths = [0.01, 1.0, 100.0, 1e4]
    head = fed(ridge(40, 8, strengths=strengths), torch.from_numpy(x[:60]), torch.from_numpy(y[:60]))
    validation = {"image": torch.from_numpy(x_val), "text": torch.from_numpy(y_val)}
    for part in (slice(0, 30), slice(30, 70)):
        head.validate(Batch([""] * len(x_val[part]), {name: value[part] for name, value in validation.items()}))
    head.finish()
    recalls = {}
    for strength in strengths:
        mean, center, weight = plain(x[:60], y[:60], strength)
        left = (x_val - mean) / x[:60].std(0) @ weight
        left /= np.linalg.norm(left, axis=1, keepdims=True)
        right = y_val.reshape(-1, 8) / np.linalg.norm(y_val.reshape(-1, 8), axis=1, keepdims=True) - center
        right /= np.linalg.norm(right, axis=1, keepdims=True)
        scores, owner = left @ right.T, np.arange(70).repeat(2)
        hits = []
        for k in (1, 5, 10):
            top = np.argsort(-scores, axis=1)[:, :k]
            hits.append(np.mean([(owner[row] == i).any() for i, row in enumerate(top)]))
            top = np.argsort(-scores.T, axis=1)[:, :k]
            hits.append(np.mean([i in row for i, row in zip(owner, top, strict=True)]))
        recalls[strength] = np.mean(hits)
    assert len(set(recalls.values())) > 2
    best = max(recalls, key=recalls.__getitem__)
    assert head.report() == pytest.approx(
        {"strength": best, "validation_recall": recalls[best], "parameters": 40 * 8, "flops": 2 * 40 * 8}
    )


def test_ridge_scores_validation_rows_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0

    def watched(scores: Callable[[slice, slice], torch.Tensor], *given: Any) -> Ranks:
        def noted(images: slice, texts: slice) -> torch.Tensor:
            nonlocal largest
            tile = scores(images, texts)
            largest = max(largest, tile.numel())
            return tile

        return ranks(noted, *given)

    monkeypatch.setattr("vlpipe.heads.closed_form.ranks", watched)
    x, y = rows(n=1500, p=2, q=2, k=1)
    head = fed(ridge(2, 2, strengths=[1.0]), x, y, 1500)
    head.validate(Batch([""] * 1500, {"image": x, "text": y}))
    head.finish()
    assert largest == 1024 * 1024


def test_ridge_constant_columns_give_zero_also_when_they_are_large() -> None:
    x, y = rows()
    x[:, 2] = 12345.678
    x[:, 4] = 0
    y[..., 1] = 2
    head = fed(ridge(7, 5, strength=1.0), x.float(), y.float(), 33)
    head.finish()
    assert head.scale[2] == head.scale[4] == 0
    assert torch.isfinite(head.weight).all()
    other = x.clone()
    other[:, 2] += 5  # a column that taught nothing says nothing
    left, right = (head.images(Batch([], {"image": z})).x["image"] for z in (x, other))
    torch.testing.assert_close(left, right)


def test_ridge_without_validation_rows_says_what_to_do() -> None:
    head = fed(ridge(7, 5), *rows())
    with pytest.raises(VlpipeError, match=r"--split-rule random.*--set strength"):
        head.finish()


def test_ridge_one_training_row_is_finite() -> None:
    head = fed(ridge(7, 5, strength=1.0), *rows(n=1))
    head.finish()
    assert head.weight.abs().max() == 0


def test_identity_refuses_other_widths_and_names_ridge() -> None:
    with pytest.raises(VlpipeError, match=r"384.*512.*ridge"):
        Identity(Identity.Config(), Shapes({"image": (384,), "text": (512,)}))


def test_identity_takes_the_encoders_temperature() -> None:
    shapes = Shapes({"image": (2,), "text": (2,)}, {"text": {"logit_scale": 50.0}})
    texts = Batch(["a", "b"], {"text": torch.eye(2)})
    head = Identity(Identity.Config(), shapes)
    assert head.temperature(head.texts(texts)).tolist() == pytest.approx([0.02, 0.02])
    assert Identity(Identity.Config(temperature=0.5), shapes).temperature(texts).tolist() == [0.5, 0.5]
    with pytest.raises(UsageError, match="temperature"):
        resolve(Identity.Config, {"temperature": 0.0})
    with pytest.raises(UsageError, match="strength"):
        resolve(Ridge.Config, {"strength": 0.0})
    with pytest.raises(VlpipeError, match=r"temperature=0\.07"):
        Identity(Identity.Config(), Shapes(shapes.rows)).temperature(texts)


def test_identity_is_plain_cosine() -> None:
    head = Identity(Identity.Config(), Shapes({"image": (2,), "text": (2,)}))
    images = head.images(Batch(["i"], {"image": torch.tensor([[3.0, 4.0]])}))
    texts = head.texts(Batch(["t", "z"], {"text": torch.tensor([[10.0, 0.0], [0.0, 0.0]])}))
    assert head.score(images, texts).tolist() == [[pytest.approx(0.6), 0.0]]


def tpc(**settings: object) -> Tpc:
    return Tpc(resolve(Tpc.Config, settings), Shapes({"image": (6,), "text": (6,)}))


def views(rows: int = 30, k: int = 4, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    core = rng.normal(size=(rows, 3)) @ rng.normal(size=(3, 6))
    text = torch.from_numpy(core[:, None] + 0.5 * rng.normal(size=(rows, k, 6))).float()
    return Batch([""] * rows, {"image": torch.from_numpy(core).float(), "text": text})


def test_tpc_starts_as_the_identity() -> None:
    batch = views()
    head = tpc()
    t = unit(batch.x["text"][:, 0])
    torch.testing.assert_close(head.texts(Batch([], {"text": t})).x["text"], t)
    assert head.temperature(head.texts(Batch([], {"text": t}))).tolist() == pytest.approx([0.07] * 30, abs=1e-6)


def test_tpc_defaults_are_the_papers() -> None:
    config = Tpc.Config()
    assert (config.lr, config.weight_decay, config.warmup, config.clip_norm) == (5e-4, 0.1, 0.05, 1.0)
    assert (config.lambda_agree, config.lambda_nc, config.tau_0, config.gamma, config.views) == (
        1,
        0.1,
        0.07,
        1,
        5,
    )
    assert config.align == 0


def test_tpc_training_brings_single_views_nearer_to_the_consensus() -> None:
    head = tpc(lr=1e-2)
    first = head.update(views())
    for _ in range(60):
        last = head.update(views())
    assert last["agree"] < 0.8 * first["agree"]
    assert last["core"] == pytest.approx(first["core"])  # frozen features: the filter cannot change it
    assert first["loss"] == pytest.approx(first["agree"] + 0.1 * first["nc"], rel=1e-5)


def test_tpc_temperature_is_not_clipped() -> None:
    head = tpc(tau_0=0.1, gamma=4.0)
    with torch.no_grad():
        head.filter.weight.copy_(torch.eye(6).roll(1, 0))  # the core of e0 is e1: nothing of it is kept
    texts = head.texts(Batch([], {"text": torch.eye(6)[:1]}))
    assert head.temperature(texts).item() == pytest.approx(0.5)


def test_tpc_zero_captions_are_no_views() -> None:
    batch = views(k=3)
    padded = torch.cat([batch.x["text"], torch.zeros(30, 1, 6)], dim=1)
    head = tpc()
    expected = head.loss(batch)
    got = head.loss(Batch(batch.ids, {"image": batch.x["image"], "text": padded}))
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value)


def test_tpc_names_both_widths_and_refuses_bad_settings() -> None:
    with pytest.raises(VlpipeError, match=r"6.*7.*ridge run"):
        Tpc(Tpc.Config(), Shapes({"image": (6,), "text": (7,)}))
    with pytest.raises(UsageError, match="views"):
        resolve(Tpc.Config, {"views": 0})


def test_a_loss_that_is_not_finite_stops_before_the_weights_change() -> None:
    head, batch = tpc(), views()
    batch.x["image"][0, 0] = math.nan
    with pytest.raises(VlpipeError, match=r"nan at step 1.*lower lr"):
        head.update(batch)
    assert torch.equal(head.filter.weight, torch.eye(6))


def test_only_matrices_decay() -> None:
    head = tpc(lr=0.1, weight_decay=0.5)
    with torch.no_grad():
        head.filter.bias.fill_(1.0)
    head.optimizer().zero_grad()
    for parameter in head.parameters():
        parameter.grad = torch.zeros_like(parameter)
    head.optimizer().step()
    torch.testing.assert_close(head.filter.weight.detach(), 0.95 * torch.eye(6))
    assert torch.equal(head.filter.bias.detach(), torch.ones(6))


def test_learning_rate_rises_then_falls() -> None:
    # 10 steps, 20 % warm-up: 1/2, 1, then a half cosine of 8 steps.
    rates = [learning_rate(step, 10, 1.0, 0.2) for step in range(11)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[6] == pytest.approx(0.5)
    assert rates[10] == pytest.approx(0.0)
    assert rates[2:] == sorted(rates[2:], reverse=True)
