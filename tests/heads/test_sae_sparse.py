"""Sparse products against dense ones, and the selection of the largest."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vlpipe.heads import sae_sparse as sparse
from vlpipe.heads.sae_model import SparseAutoencoder


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def dense_loss(model: SparseAutoencoder, x: Tensor) -> Tensor:
    """Plain autograd through a dense code."""
    z = ((x - model.b_pre) @ model.W_enc.T + model.b_enc).relu()
    top = z.topk(model.k, dim=1)
    code = torch.zeros_like(z).scatter(1, top.indices, top.values)
    return (code @ model.W_dec + model.b_pre - x).square().sum()


@pytest.mark.parametrize(("columns", "k"), [(4096, 16), (4096, 32), (4096, 300), (4100, 16), (64, 3), (64, 64)])
def test_largest_is_topk_of_every_row(columns: int, k: int) -> None:
    scores = drawn(9, columns, dtype=torch.float32)
    values, indices = sparse.largest(scores, k)
    assert torch.equal(values, scores.sort(dim=1, descending=True).values[:, :k])
    assert torch.equal(scores.gather(1, indices), values)
    assert all(len(set(row)) == k for row in indices.tolist())


@pytest.mark.parametrize("fill", ["equal", "few", "falling", "nan"])
def test_largest_of_rows_that_defeat_the_bound(fill: str) -> None:
    """All equal, equal but for a few, all large ones in one group, none finite."""
    scores = torch.zeros(3, 4096)
    if fill == "few":
        scores[:, 7:12] = 1.0
    if fill == "falling":
        scores[:] = -torch.arange(4096.0)
    if fill == "nan":
        scores[1] = torch.nan
    values, indices = sparse.largest(scores, 16)
    expected = scores.topk(16, dim=1).values
    assert torch.equal(values.nan_to_num(9), expected.nan_to_num(9))
    assert all(len(set(row)) == 16 for row in indices.tolist())


def test_bag_and_pattern_are_products_with_the_dense_code() -> None:
    table, rows, values = drawn(10, 4), drawn(6, 4, seed=1), drawn(6, 3, seed=2)
    indices = torch.stack([torch.randperm(10, generator=torch.Generator().manual_seed(n))[:3] for n in range(6)])
    code = torch.zeros(6, 10, dtype=torch.float64).scatter(1, indices, values)
    pattern = sparse.Pattern(indices, 10)
    torch.testing.assert_close(sparse.bag(values, indices, table), code @ table)
    torch.testing.assert_close(pattern.gathered(values, rows), code.T @ rows)
    torch.testing.assert_close(pattern.products(rows, table), (rows @ table.T).gather(1, indices))


def test_gradcheck_of_both_functions() -> None:
    x, weight, bias = drawn(5, 4), drawn(8, 4, seed=1), drawn(8, seed=2)
    values, pattern = sparse.active(x, weight, bias, 3)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]

    def chosen(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        found = (x @ weight.T + bias).gather(1, pattern.indices)
        return sparse._Active.apply(x, weight, bias, found.detach(), pattern)

    assert torch.autograd.gradcheck(chosen, leaves)
    table = drawn(8, 4, seed=3).requires_grad_()
    decode = lambda v, t: sparse.decode(v, pattern, t)  # noqa: E731
    assert torch.autograd.gradcheck(decode, [values.detach().requires_grad_(), table])


@pytest.mark.parametrize("latents", [40, 4096])
def test_gradients_equal_those_of_the_dense_step(latents: int) -> None:
    torch.manual_seed(0)
    model = SparseAutoencoder(12, latents, 8).double()
    x = drawn(30, 12)
    values, pattern = model.codes(x)
    (model.reconstructed(values, pattern) - x).square().sum().backward()
    ours = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    dense_loss(model, x).backward()
    assert len(ours) == 4
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, atol=1e-10, rtol=1e-10)


def test_latents_that_are_not_active_have_no_gradient() -> None:
    torch.manual_seed(0)
    model = SparseAutoencoder(6, 50, 2)
    values, pattern = model.codes(drawn(3, 6, dtype=torch.float32))
    model.reconstructed(values, pattern).square().sum().backward()
    silent = torch.ones(50, dtype=torch.bool)
    silent[pattern.indices[values > 0]] = False
    assert int(silent.sum()) >= 44
    for weights in (model.W_enc, model.W_dec):
        assert weights.grad is not None
        assert not weights.grad[silent].any()
        assert weights.grad[~silent].any(dim=1).all()


def test_only_the_latents_among_are_chosen() -> None:
    x, weight, bias = drawn(5, 4), drawn(20, 4, seed=1), drawn(20, seed=2)
    among = torch.tensor([3, 7, 11, 19])
    values, pattern = sparse.active(x, weight, bias, 2, among)
    expected = (x @ weight.T + bias)[:, among].topk(2, dim=1)
    torch.testing.assert_close(values, expected.values)
    assert torch.equal(pattern.indices, among[expected.indices])


def test_chunks_do_not_change_the_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = drawn(50, 4), drawn(32, 4, seed=1), drawn(32, seed=2)
    whole, pattern = sparse.active(x, weight, bias, 5)
    monkeypatch.setattr(sparse, "CHUNK_BYTES", 32 * 8 * 7)
    parts, same = sparse.active(x, weight, bias, 5)
    assert torch.equal(pattern.indices, same.indices)
    torch.testing.assert_close(whole, parts)
