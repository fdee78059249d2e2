from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.moments import Moments
from vlpipe.heads.schedules import linear, stepped
from vlpipe.heads.standardise import Standardise


def rows(n: int = 50) -> torch.Tensor:
    made = np.random.default_rng(0).normal(size=(n, 4)) * [1, 100, 1e-3, 1] + [0, 1e4, 5, -3]
    return torch.from_numpy(made)


@pytest.mark.parametrize("by", ["column", "whole"])
def test_rows_are_centred_and_scaled_as_numpy_says(by: str) -> None:
    x = rows()
    scaler = Standardise(4, by).double()  # type: ignore[arg-type]
    assert torch.equal(scaler(x), x)  # before `fit`
    scaler.fit(iter(x.split(7)))
    spread = x.numpy().std(0)
    divisor = spread if by == "column" else np.sqrt((spread**2).mean())
    np.testing.assert_allclose(scaler(x), (x.numpy() - x.numpy().mean(0)) / divisor, atol=1e-8)
    assert scaler(x[None]).shape == (1, 50, 4)


def test_constant_columns_become_zero_also_beside_others() -> None:
    x = rows()
    x[:, 1] = 0.1
    for by in ("column", "whole"):
        scaler = Standardise(4, by)  # type: ignore[arg-type]
        scaler.fit([x])
        assert scaler(x)[:, 1].abs().max() == 0
        assert torch.isfinite(scaler(x + 1)).all()
    alone = Standardise(4, "whole")
    alone.fit([torch.ones(1, 4)])
    assert alone(torch.ones(2, 4)).abs().max() == 0


@pytest.mark.parametrize(("share", "varying"), [(1e-30, False), (1e-8, False), (1e-6, True)])
def test_columns_that_vanish_beside_the_others_are_constant(share: float, varying: bool) -> None:
    """MiniLM's outputs 127, 223 and 319: a mean of 0 and a spread of 1e-30; dividing by it overflows gradients."""
    x = rows(60) - rows(60).mean(0)
    x = x / x.std(0)
    x[:, 2] *= share
    expected = np.where([True, True, varying, True], 1 / x.numpy().std(0), 0)
    scaler = Standardise(4).double()
    scaler.fit([x])
    np.testing.assert_allclose(scaler.get_buffer("inverse"), expected)
    moments = Moments()
    moments.add(torch.cat([x * 1e-9, x], dim=1), x)
    both = np.concatenate([expected * 1e9, expected])
    np.testing.assert_allclose(moments.inverse_spread(4, 4), both)  # each vector by its own columns
    np.testing.assert_allclose(moments.inverse_spread(), np.where(np.arange(8) < 4, 0, both))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_make_no_means(bad: float) -> None:
    x = rows()
    x[9, 2] = bad
    for by in ("column", "whole"):
        with pytest.raises(VlpipeError, match=r"1 of 7 training rows .*not finite"):
            Standardise(4, by).fit(iter(x.split(7)))  # type: ignore[arg-type]
    moments = Moments()
    moments.add(x[:7], x[:7])
    for left, right in ((x, rows()), (rows(), x)):
        with pytest.raises(VlpipeError, match=r"1 of 50 training rows .*not finite"):
            moments.add(left, right)
    assert moments.count == 7
    np.testing.assert_allclose(moments.means()[0], rows()[:7].mean(0))


def test_nothing_to_fit_is_an_error() -> None:
    with pytest.raises(VlpipeError, match="no training rows"):
        Standardise(4).fit(iter([torch.empty(0, 4)]))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.floats(-3, 3), st.floats(-3, 3))
def test_linear_goes_from_start_to_end(epochs: int, start: float, end: float) -> None:
    values = [linear(start, end, epoch, epochs) for epoch in range(epochs)]
    assert values[0] == start
    np.testing.assert_allclose(values, np.linspace(start, end, epochs), atol=1e-9)


def test_steps_share_the_epochs() -> None:
    assert [stepped([1.0, 2.0, 3.0], epoch, 7) for epoch in range(7)] == [1, 1, 1, 2, 2, 3, 3]
    assert [stepped([1.0, 2.0, 3.0], epoch, 2) for epoch in range(2)] == [1, 2]
    assert stepped([1.0], 99, 10) == 1
