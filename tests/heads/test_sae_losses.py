"""The autoencoder's losses against loops and cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from vlpipe.heads import sae_losses as losses
from vlpipe.heads.sae_model import SparseAutoencoder


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_reconstruction_and_auxiliary_against_loops() -> None:
    x, x_hat = drawn(7, 5).numpy(), drawn(7, 5, seed=1).numpy()
    total = 0.0
    for row, other in zip(x, x_hat, strict=True):
        total += sum((a - b) ** 2 for a, b in zip(row, other, strict=True))
    found = losses.reconstruction(torch.from_numpy(x), torch.from_numpy(x_hat), 2.5)
    assert float(found) == pytest.approx(total / 7 / 2.5)
    mean = [sum(x[:, c]) / 7 for c in range(5)]
    variance = sum((x[r, c] - mean[c]) ** 2 for r in range(7) for c in range(5)) / 7
    found = losses.auxiliary(torch.from_numpy(x), torch.from_numpy(x_hat))
    assert float(found) == pytest.approx(total / 7 / variance)


def test_auxiliary_by_hand() -> None:
    """Residuals 0 and 2 have the variance 1; a guess of 1 for both is wrong by 1 each."""
    assert float(losses.auxiliary(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [1.0]]))) == 1.0


@pytest.mark.parametrize("residual", [torch.zeros(4, 3), torch.ones(1, 3)])
def test_auxiliary_of_a_residual_without_variance_is_0(residual: Tensor) -> None:
    guess = torch.full_like(residual, 0.5).requires_grad_()
    found = losses.auxiliary(residual, guess)
    found.backward()
    assert float(found.detach()) == 0
    assert guess.grad is not None
    assert not guess.grad.any()


def test_gradcheck_and_the_residual_gets_no_gradient() -> None:
    x, x_hat = drawn(4, 3).requires_grad_(), drawn(4, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: losses.reconstruction(a, b, 2.0), [x, x_hat])
    assert torch.autograd.gradcheck(lambda b: losses.auxiliary(x.detach(), b), [x_hat])
    losses.auxiliary(x, x_hat).backward()
    assert x.grad is None


def test_geometric_median_by_hand_and_against_a_search() -> None:
    """Of three points with an angle of 120 degrees or more it is the middle one; an outlier does not move it."""
    obtuse = torch.tensor([[-1.0, 0.0], [0.0, 0.1], [1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(losses.geometric_median(obtuse), obtuse[1], atol=1e-3, rtol=0)
    line = torch.tensor([[0.0], [1.0], [2.0], [3.0], [1000.0]], dtype=torch.float64)
    assert float(losses.geometric_median(line)) == pytest.approx(2.0, abs=1e-2)
    cloud = drawn(40, 3)
    found = losses.geometric_median(cloud)
    best = (cloud - found).norm(dim=1).sum()
    for step in np.eye(3):
        for size in (0.01, -0.01):
            assert (cloud - found - size * torch.from_numpy(step)).norm(dim=1).sum() > best


def test_geometric_median_of_equal_rows_is_the_row() -> None:
    rows = torch.tensor([[3.0, -2.0]]).expand(6, 2)
    torch.testing.assert_close(losses.geometric_median(rows), rows[0])


def test_the_revived_reconstruction_adds_no_bias_and_rectifies_nothing() -> None:
    """Dead latents' pre-activations as they are, negative ones too, times their decoder rows (loop)."""
    torch.manual_seed(0)
    model = SparseAutoencoder(4, 9, 2).double()
    with torch.no_grad():
        model.b_pre.copy_(drawn(4, seed=3))
        model.b_enc.fill_(-50.0)
    x, dead = drawn(5, 4), torch.tensor([1, 4, 8])
    pre = ((x - model.b_pre) @ model.W_enc.T + model.b_enc).detach().numpy()
    expected = np.zeros((5, 4))
    for row in range(5):
        for latent in sorted([1, 4, 8], key=lambda n: -pre[row, n])[:2]:
            expected[row] += pre[row, latent] * model.W_dec[latent].detach().numpy()
    torch.testing.assert_close(model.revived(x, dead, 2), torch.from_numpy(expected))
    model.revived(x, dead, 2).sum().backward()
    assert model.W_enc.grad is not None
    assert set(model.W_enc.grad.any(dim=1).nonzero()[:, 0].tolist()) <= set(dead.tolist())
    assert model.W_enc.grad.any()
