from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from vlpipe.heads import tpc_losses as losses
from vlpipe.heads.vectors import unit

B, K, D = 4, 3, 5


def data(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    v = unit(torch.randn(B, D, generator=generator, dtype=torch.float64))
    t = unit(torch.randn(B, K, D, generator=generator, dtype=torch.float64))
    c_hat = unit(torch.randn(B, K, D, generator=generator, dtype=torch.float64))
    mask = torch.tensor([[True, True, True], [True, False, True], [False, True, False], [True, True, False]])
    return v, t, c_hat, mask


def norm(z: np.ndarray) -> np.ndarray:
    return z / (math.sqrt(sum(float(a) ** 2 for a in z)) + 1e-12)


def dot(a: np.ndarray, b: np.ndarray) -> float:
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def loops(v, t, c_hat, mask, tau_0, gamma):
    """Equations 2 to 8 term by term."""
    v, t, c_hat = v.numpy(), t.numpy(), c_hat.numpy()
    c, u = [], []
    agree, commit, align, views = 0.0, 0.0, 0.0, 0
    for i in range(B):
        there = [k for k in range(K) if mask[i, k]]
        c.append(norm(sum(t[i, k] for k in there)))
        u.append(sum(1 - dot(t[i, k], c[i]) ** 2 for k in there) / len(there))
        for k in there:
            r = t[i, k] - dot(t[i, k], c_hat[i, k]) * c_hat[i, k]
            agree += sum((a - b) ** 2 for a, b in zip(c_hat[i, k], c[i], strict=True))
            commit += dot(v[i], r) ** 2
            align += 1 - dot(v[i], c_hat[i, k])
            views += 1
    core = 0.0
    for i in range(B):
        tau = min(max(tau_0 * (1 + gamma * u[i]), tau_0), 3 * tau_0)
        own = math.exp(dot(v[i], c[i]) / tau)
        core -= math.log(own / sum(math.exp(dot(v[i], c[j]) / tau) for j in range(B))) / B
        core -= math.log(own / sum(math.exp(dot(c[i], v[j]) / tau) for j in range(B))) / B
    return c, u, agree / views, commit / views, align / views, core


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("gamma", [0.0, 1.0, 8.0])  # 8: some temperatures are clipped at 3 tau_0
def test_every_term_equals_loops(masked: bool, gamma: float) -> None:
    v, t, c_hat, mask = data()
    if not masked:
        mask = torch.ones_like(mask)
    given = mask if masked else None
    c, u, agree, commit, align, core = loops(v, t, c_hat, mask, 0.07, gamma)
    got_c = losses.consensus(t, given)
    got_u = losses.disagreement(t, got_c, given)
    np.testing.assert_allclose(got_c, np.array(c), atol=1e-12)
    np.testing.assert_allclose(got_u, np.array(u), atol=1e-12)
    assert losses.agreement(c_hat, got_c, given).item() == pytest.approx(agree, abs=1e-12)
    assert losses.non_commitment(v, losses.residual(t, c_hat), given).item() == pytest.approx(commit, abs=1e-12)
    assert losses.alignment(v, c_hat, given).item() == pytest.approx(align, abs=1e-12)
    tau = losses.core_temperature(got_u, 0.07, gamma)
    assert losses.core(v, got_c, tau).item() == pytest.approx(core, abs=1e-10)


def test_core_by_hand_is_the_sum_of_both_directions() -> None:
    # Two images, cores equal to them, tau 1: each direction is log(1 + e^-1), from logits 1 and 0.
    v = torch.eye(2, dtype=torch.float64)
    expected = 2 * math.log(1 + math.exp(-1))
    assert losses.core(v, v, torch.ones(2)).item() == pytest.approx(expected)


def test_core_divides_both_directions_by_the_anchor_rows_temperature() -> None:
    v = torch.eye(2, dtype=torch.float64)
    tau = torch.tensor([1.0, 0.5])
    expected = math.log(1 + math.exp(-1)) + math.log(1 + math.exp(-2))  # each once a direction, halved by 1/B
    assert losses.core(v, v, tau).item() == pytest.approx(expected)


def test_temperature_is_clipped_to_three_times_tau_0() -> None:
    got = losses.core_temperature(torch.tensor([0.0, 0.5, 1.0]), 0.1, 4.0)
    assert got.tolist() == pytest.approx([0.1, 0.3, 0.3])


def test_residual_is_orthogonal_and_energy_is_its_squared_length() -> None:
    _, t, c_hat, _ = data(1)
    r = losses.residual(t, c_hat)
    assert (r * c_hat).sum(-1).abs().max() < 1e-12
    torch.testing.assert_close(losses.residual_energy(t, c_hat), r.square().sum(-1))


def test_one_view_has_no_disagreement_and_one_row_no_core_loss() -> None:
    v, t, _, _ = data()
    one = t[:1, :1]
    c = losses.consensus(one)
    assert losses.disagreement(one, c).item() == pytest.approx(0, abs=1e-11)
    assert losses.core(v[:1], c, torch.tensor([0.07])).item() == 0


def test_an_image_without_views_adds_nothing() -> None:
    v, t, c_hat, _ = data()
    mask = torch.ones(B, K, dtype=torch.bool)
    mask[2] = False
    kept = [0, 1, 3]
    c = losses.consensus(t, mask)
    assert c[2].abs().max() == 0
    assert losses.disagreement(t, c, mask)[2] == 0
    torch.testing.assert_close(losses.agreement(c_hat, c, mask), losses.agreement(c_hat[kept], c[kept]))
    assert losses.non_commitment(v, t, torch.zeros_like(mask)).item() == 0


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_right(masked: bool) -> None:
    v, t, c_hat, mask = data(2)
    mask[2] = True  # a lone view has u = 0, on the edge of the clip, where there is no derivative
    given = mask if masked else None

    def total(v: Tensor, t: Tensor, c_hat: Tensor) -> Tensor:
        c = losses.consensus(t, given)
        # gamma 1 keeps u inside the clip, where the temperature is differentiable
        tau = losses.core_temperature(losses.disagreement(t, c, given), 0.07, 1.0)
        parts = losses.core(v, c, tau), losses.agreement(c_hat, c, given), losses.alignment(v, c_hat, given)
        return torch.stack([*parts, losses.non_commitment(v, losses.residual(t, c_hat), given)])

    inputs = tuple(x.clone().requires_grad_() for x in (v, t, c_hat))
    assert torch.autograd.gradcheck(total, inputs)


def test_unit_keeps_zero_and_float64_and_lifts_float16() -> None:
    assert unit(torch.zeros(2, 3)).abs().max() == 0
    assert unit(torch.ones(1, 3, dtype=torch.float64)).dtype == torch.float64
    half = unit(torch.tensor([[60000.0, 60000.0]], dtype=torch.float16))  # its squares overflow float16
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, torch.full((1, 2), 0.5**0.5))
    z = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    unit(z).sum().backward()
    assert torch.isfinite(z.grad).all()
