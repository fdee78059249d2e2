"""What the statistics do not depend on, and what they say of rows that hold nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vlpipe.evaluate.canonical import cca, svcca
from vlpipe.evaluate.cka import cka
from vlpipe.evaluate.cknna import cknna
from vlpipe.evaluate.kernels import UndefinedError
from vlpipe.foundation.errors import VlpipeError

torch.set_num_threads(1)
Number = Callable[[Tensor, Tensor], float]
NUMBERS: dict[str, Number] = {
    "cca": lambda x, y: cca(x, y, 4),
    "cca rbf": lambda x, y: cca(x, y, 4, "rbf"),
    "svcca": svcca,
    "svcca fixed10": lambda x, y: svcca(x, y, components=10),
    "cka": cka,
    "cka rbf": lambda x, y: cka(x, y, "rbf"),
    "cka debiased": lambda x, y: cka(x, y, debiased=True),
    "cka debiased rbf": lambda x, y: cka(x, y, "rbf", True),
    "cknna": lambda x, y: cknna(x, y, 5),
    "cknna rbf": lambda x, y: cknna(x, y, 5, "rbf"),
    "cknna unbiased": lambda x, y: cknna(x, y, 5, estimator="unbiased"),
    "cknna unbiased rbf": lambda x, y: cknna(x, y, 5, "rbf", "unbiased"),
}
every = pytest.mark.parametrize("name", NUMBERS)
SHIFTED = [name for name in NUMBERS if "cknna" not in name or "rbf" in name]  # those that a shift does not change


def sides(seed: int, n: int = 40, p: int = 6, q: int = 5) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    hidden, a, b, x, y = (
        torch.randn(*shape, generator=draw, dtype=torch.float64)
        for shape in ((n, 2), (2, p), (2, q), (n, p), (n, q))
    )
    return hidden @ a + x, hidden @ b + y


def turned(width: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(width, width, generator=draw, dtype=torch.float64))[0]


@every
@given(seed=st.integers(0, 10_000), power=st.integers(-6, 6))
@settings(max_examples=15, deadline=None)
def test_rotation_and_scale_of_either_side_change_nothing(name: str, seed: int, power: int) -> None:
    x, y = sides(seed)
    number = NUMBERS[name]
    plain = number(x, y)
    assert number(10.0**power * x @ turned(6, seed), y) == pytest.approx(plain, abs=1e-7)
    assert number(x, 10.0**power * y @ turned(5, seed)) == pytest.approx(plain, abs=1e-7)


@pytest.mark.parametrize("name", SHIFTED)
@given(seed=st.integers(0, 10_000), shift=st.floats(-100, 100))
@settings(max_examples=10, deadline=None)
def test_a_shift_changes_nothing(name: str, seed: int, shift: float) -> None:
    x, y = sides(seed)
    assert NUMBERS[name](x + shift, y - shift) == pytest.approx(NUMBERS[name](x, y), abs=1e-6)


@every
@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_sides_and_the_order_of_pairs_do_not_matter(name: str, seed: int) -> None:
    x, y = sides(seed)
    number = NUMBERS[name]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    plain = number(x, y)
    assert number(x[order], y[order]) == pytest.approx(plain, abs=1e-9)
    if (
        "unbiased" not in name
    ):  # the public code's product of two masked, asymmetric matrices depends on their order
        assert number(y, x) == pytest.approx(plain, abs=1e-9)


@every
def test_of_itself_it_is_1(name: str) -> None:
    x, _ = sides(3)
    assert NUMBERS[name](x, x) == pytest.approx(1, abs=1e-9)


@every
def test_constant_rows_have_no_value(name: str) -> None:
    x, y = sides(0)
    for bad in (torch.full_like(x, 0.1), torch.zeros_like(x), torch.full_like(x, 3.3).float()):
        with pytest.raises(UndefinedError, match="rows are equal"):
            NUMBERS[name](bad, y)
        with pytest.raises(UndefinedError, match="rows are equal"):
            NUMBERS[name](y, bad)


@every
def test_a_constant_column_changes_nothing_but_a_shift(name: str) -> None:
    x, y = sides(0)
    more = torch.cat([x, torch.zeros(len(x), 1, dtype=x.dtype)], dim=1)
    assert NUMBERS[name](more, y) == pytest.approx(NUMBERS[name](x, y), abs=1e-9)


@every
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rows_that_are_not_finite_are_named(name: str, value: float) -> None:
    x, y = sides(0)
    y[7, 2] = value
    with pytest.raises(VlpipeError, match=r"texts|CCA|SVCCA") as told:
        NUMBERS[name](x, y)
    assert "rows [7] of 1 are NaN or infinite" in str(told.value)


@every
def test_too_few_pairs_have_no_value(name: str) -> None:
    x, y = sides(0, n=2)
    with pytest.raises(UndefinedError):
        NUMBERS[name](x, y)


@every
def test_rows_that_are_no_vectors(name: str) -> None:
    with pytest.raises(VlpipeError, match=r"shape \(3, 4\)"):
        NUMBERS[name](torch.ones(10, 3, 4), torch.ones(10, 4))


def test_sixteen_unrelated_rows_of_512() -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(16, 512, generator=draw) for _ in range(2))
    assert cka(x, y) > 0.95
    assert abs(cka(x, y, debiased=True)) < 0.2
    assert cka(x, x, debiased=True) == pytest.approx(1)
    for number in (cca, svcca):  # 15 directions each: two such spans of 16 rows always meet
        with pytest.raises(UndefinedError, match="are 1 for any features"):
            number(x, y)


def test_unrelated_rows() -> None:
    """Debiased CKA is 0 on average; CKNNA about the share of neighbours that agree by chance."""
    found = []
    for seed in range(40):
        draw = torch.Generator().manual_seed(seed)
        x, y = (torch.randn(50, 64, generator=draw) for _ in range(2))
        found.append(cka(x, y, debiased=True))
    assert abs(np.mean(found)) < 0.01
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(1000, 64, generator=draw) for _ in range(2))
    for number in (cknna(x, y), cknna(x, y, estimator="unbiased")):
        assert 0 < number < 3 * 10 / 999


def test_ties_do_not_agree_by_their_order() -> None:
    """Four classes, each row its class: which ten of a class are neighbours is drawn, and not the same draw."""
    classes = torch.arange(400) % 4
    x = torch.nn.functional.one_hot(classes).double()
    y = x[:, [1, 0, 3, 2]]
    chance = 10 / 99  # of a drawn neighbour to be among the other side's ten
    assert cknna(x, y, 10) == pytest.approx(chance, rel=0.3)


def test_more_neighbours_than_rows() -> None:
    x, y = sides(0, n=10)
    with pytest.raises(UndefinedError, match="10 neighbours among 10 pairs"):
        cknna(x, y, 10)
    assert cknna(x, y, 9) == pytest.approx(float(cknna(y, x, 9)))


def test_one_row_alone_differs() -> None:
    x = torch.zeros(10, 3)
    x[0] = 1
    _, y = sides(0, n=10)
    with pytest.raises(UndefinedError, match="one row alone differs"):
        cka(x, y, debiased=True)
    with pytest.raises(UndefinedError, match="median distance is 0"):
        cka(x, y, "rbf")


def test_fewer_values_than_components_use_those_there_are() -> None:
    x, y = sides(0, n=200)
    assert cca(x, y, 50) == pytest.approx(cca(x, y, 6), abs=1e-12)


@pytest.mark.soak
def test_twenty_thousand_rows_fit_four_gibibytes() -> None:
    """In a process of its own, whose peak is what these statistics need."""
    import subprocess
    import sys

    code = """
import resource, torch
from vlpipe.evaluate.canonical import cca, svcca
from vlpipe.evaluate.cka import cka
from vlpipe.evaluate.cknna import cknna
x, y = torch.randn(20_000, 768), torch.randn(20_000, 384)
cca(x, y), svcca(x, y), cka(x, y), cka(x, y, debiased=True)
x, y = x[:, :32], y[:, :32]  # what follows needs no more memory for wider rows, but more time
cca(x, y, kernel="rbf"), cka(x, y, "rbf"), cknna(x, y), cknna(x, y, estimator="unbiased")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    done: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4 << 20  # KiB
