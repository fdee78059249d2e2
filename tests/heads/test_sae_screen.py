"""The largest activations by way of bfloat16: none is missed, whatever its rounding does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vlpipe.heads import sae_screen as screen
from vlpipe.heads import sae_sparse as sparse

LATENTS = 4096


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "fast_bfloat16", lambda: True)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def found(x: Tensor, weight: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
    def dots(pairs: tuple[Tensor, Tensor]) -> Tensor:
        return (x.double()[pairs[0]] * weight.double()[pairs[1]]).sum(dim=1).float()

    return screen.screened(x, weight, bias, k, dots)


@pytest.mark.parametrize("k", [1, 16, 32])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("offset", [0.0, 2.0, -2.0])
def test_the_same_as_a_full_sort_in_double_precision(k: int, scale: float, offset: float) -> None:
    x, weight = drawn(300, 24) * scale, drawn(LATENTS, 24, seed=1)
    bias = (drawn(LATENTS, seed=2) + offset) * scale
    exact = x.double() @ weight.double().T + bias.double()
    values, indices = found(x, weight, bias, k) or pytest.fail("not screened")
    expected = exact.topk(k, dim=1)
    torch.testing.assert_close(values.double(), expected.values, rtol=1e-6, atol=1e-6 * scale)
    torch.testing.assert_close(exact.gather(1, indices), expected.values, rtol=1e-6, atol=1e-6 * scale)
    assert all(len(set(row)) == k for row in indices.tolist())


def test_bounds_hold_for_values_that_bfloat16_confuses() -> None:
    """Rows of weights that differ below bfloat16's precision only: their order is decided by exact values."""
    x = drawn(1, 32).abs()
    base = drawn(LATENTS, 32, seed=1) * 0.1
    base[:40] = 1.0 + torch.arange(40)[:, None] * 2.0**-14  # all are 1.0 in bfloat16
    values, indices = found(x, base, torch.zeros(LATENTS), 16) or pytest.fail("not screened")
    assert indices[0].tolist() == list(range(39, 23, -1))
    assert (values[0].diff() < 0).all()


def test_the_bound_of_a_products_error_holds_and_is_not_idle() -> None:
    x, weight = drawn(50, 64), drawn(LATENTS, 64, seed=1)
    rough = x.bfloat16().double() @ weight.bfloat16().double().T
    off = (rough - x.double() @ weight.double().T).abs().amax(dim=1)
    bound = screen._error(x, x.bfloat16(), weight, weight.bfloat16())
    assert (off <= bound).all()
    assert (off > bound / 30).all()


def test_values_whose_squares_are_lost_are_not_missed() -> None:
    """Rows (1e-25) whose norms are 0 in float32, and products that all but cancel: rounding decides the order."""
    x, weight = drawn(32, 64), drawn(LATENTS, 64, seed=1)
    for part, scale in ((x, 100.0), (weight, 1.0)):
        part[:, 0] = scale * (1 + part[:, 2].abs())
        part[:, 1] = part[:, 0] * (1 + part[:, 3] * 1e-3)
    x[:, 1] *= -1
    for small in (1e-25, 1e-38):
        for rows, table in ((x * small, weight), (x, weight * small)):
            exact = rows.double() @ table.double().T
            values, pattern = sparse.active(rows, table, torch.zeros(LATENTS), 16)
            wanted = exact.topk(16, dim=1).values
            rough = 1e-4 * float(wanted.max())  # the products themselves are float32's, and cancel
            torch.testing.assert_close(exact.gather(1, pattern.indices), wanted, rtol=0, atol=rough)
            assert values.shape == (32, 16)


def test_a_weight_that_is_not_a_number_is_seen() -> None:
    """Also one of negative sign, as inf - inf is: its bits are below those of every number."""
    x, weight = drawn(5, 8), drawn(LATENTS, 8, seed=1)
    weight[3000, 2] = torch.tensor(torch.inf) - torch.inf
    assert found(x, weight, torch.zeros(LATENTS), 16) is None
    assert sparse.active(x, weight, torch.zeros(LATENTS), 16)[0].isnan().any(dim=1).all()


@pytest.mark.parametrize("case", ["zero row", "nan", "negative", "equal", "infinite"])
def test_rows_that_defeat_the_bound_are_left_to_the_full_product(case: str) -> None:
    x, weight, bias = drawn(5, 8), drawn(LATENTS, 8, seed=1), torch.zeros(LATENTS)
    if case == "zero row":
        x[2] = 0
    if case == "nan":
        x[2, 3] = torch.nan
    if case == "infinite":
        x[2, 3] = torch.inf
    if case == "negative":
        bias -= 1000
    if case == "equal":
        weight[:] = weight[0]
    assert found(x, weight, bias, 16) is None
    values, pattern = sparse.active(x, weight, bias, 16)
    expected = (x @ weight.T + bias).topk(16, dim=1).values
    torch.testing.assert_close(values, expected, equal_nan=True)
    assert pattern.indices.shape == (5, 16)


def test_what_is_not_screened() -> None:
    x, weight, bias = drawn(5, 8), drawn(LATENTS, 8, seed=1), torch.zeros(LATENTS)
    assert found(x.double(), weight.double(), bias.double(), 4) is None
    assert found(x, weight[:100], bias[:100], 4) is None
    assert found(x, weight, bias, LATENTS // 8) is None
    assert found(x[:0], weight, bias, 4) is None


def test_a_code_does_not_depend_on_its_batch() -> None:
    x, weight, bias = drawn(40, 24), drawn(LATENTS, 24, seed=1), drawn(LATENTS, seed=2)
    values, pattern = sparse.active(x, weight, bias, 16)
    for row in (0, 17, 39):
        alone, own = sparse.active(x[row : row + 1], weight, bias, 16)
        assert torch.equal(own.indices[0], pattern.indices[row])
        assert torch.equal(alone[0], values[row])


def test_gradients_equal_those_of_the_dense_step_in_single_precision() -> None:
    x = drawn(60, 24)
    parts = {"weight": drawn(LATENTS, 24, seed=1), "bias": drawn(LATENTS, seed=2) * 0.1, "x": x}
    grads = []
    for dense in (False, True):
        leaves = {name: part.clone().requires_grad_() for name, part in parts.items()}
        scores = leaves["x"] @ leaves["weight"].T + leaves["bias"]
        values = (
            scores.topk(16, dim=1).values
            if dense
            else sparse.active(leaves["x"], leaves["weight"], leaves["bias"], 16)[0]
        )
        (values.relu() ** 2).sum().backward()
        grads.append({name: leaf.grad for name, leaf in leaves.items()})
    for name, expected in grads[1].items():
        assert expected is not None
        torch.testing.assert_close(grads[0][name], expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize(("flags", "fast"), [("fpu avx512_bf16 sse", True), ("fpu sse", False), (None, False)])
def test_the_machine_is_asked_once(monkeypatch: pytest.MonkeyPatch, flags: str | None, fast: bool) -> None:
    def text(self: object, **_: object) -> str:
        if flags is None:
            raise FileNotFoundError
        return f"flags : {flags}\n"

    monkeypatch.undo()
    monkeypatch.setattr("pathlib.Path.read_text", text)
    screen.fast_bfloat16.cache_clear()
    assert screen.fast_bfloat16() is fast
    monkeypatch.undo()
    screen.fast_bfloat16.cache_clear()
