from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vlpipe.heads.jam_losses import OBJECTIVES, Terms, concon, context_nce, similarities
from vlpipe.heads.vectors import unit

B, K, D, TAU = 4, 3, 5, 0.2


def data(seed: int = 0, size: int = B, most: int = K) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unit images, captions, negatives, and a mask under which one image has none."""
    generator = torch.Generator().manual_seed(seed)
    v, p = (unit(torch.randn(size, D, generator=generator, dtype=torch.float64)) for _ in range(2))
    n = unit(torch.randn(size, most, D, generator=generator, dtype=torch.float64))
    there = torch.tensor([[True] * K, [True, False, True], [False] * K, [False, True, False]])[:size, :most]
    return v, p, n, there


def sigma(x: np.ndarray, y: np.ndarray) -> float:
    return math.exp(sum(float(a) * float(b) for a, b in zip(x, y, strict=True)) / TAU)


def loops(
    objective: str, v: Any, p: Any, n: Any, there: Any, *, printed: bool, halved: bool, alpha: float
) -> float:
    """Equations 1 to 3 and 16 to 21, term by term; a sum over nothing makes its term 0."""
    v, p, n, there = (x.numpy() for x in (v, p, n, there))
    size, most = there.shape
    negatives = {i: [n[i, k] for k in range(most) if there[i, k]] for i in range(size)}
    to_text = to_image = 0.0
    for i in range(size):
        images = [v[j] for j in range(size) if not (printed and j == i)]
        if images:
            to_image -= math.log(sigma(p[i], v[i]) / sum(sigma(p[i], image) for image in images)) / size
        captions = [p[j] for j in range(size) if not (printed and j == i)]
        if objective == "negcon":
            captions += [c for j in range(size) for c in negatives[j]]
        if objective != "spread":
            if captions:
                to_text -= math.log(sigma(v[i], p[i]) / sum(sigma(v[i], c) for c in captions)) / size
            continue
        own = [p[i], *negatives[i]]
        others = [c for j in range(size) if j != i for c in [p[j], *negatives[j]]]
        rest = sum(sigma(v[i], c) for c in others)
        context = -sum(math.log(sigma(v[i], c) / (sigma(v[i], c) + rest)) for c in own) / len(own)
        nce = -math.log(sigma(v[i], p[i]) / sum(sigma(v[i], c) for c in own))
        to_text += ((1 - alpha) * context + alpha * nce) / size
    if objective == "negcon" and halved:
        to_text /= 2
    return (to_text + to_image) / 2


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("printed", [False, True])
@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize(("size", "most"), [(B, K), (B, 1), (2, K), (1, K), (1, 1)])
def test_every_objective_equals_loops(objective: str, printed: bool, halved: bool, size: int, most: int) -> None:
    v, p, n, there = data(0, size, most)
    for alpha in (0.0, 0.3, 1.0):
        got = OBJECTIVES[objective](similarities(v, p, n, there, 1 / TAU), Terms(printed, halved, alpha))
        expected = loops(objective, v, p, n, there, printed=printed, halved=halved, alpha=alpha)
        assert got.item() == pytest.approx(expected, abs=1e-10)
        single = similarities(v.float(), p.float(), n.float(), there, 1 / TAU)
        assert OBJECTIVES[objective](single, Terms(printed, halved, alpha)).item() == pytest.approx(
            expected, abs=1e-6
        )


def test_by_hand() -> None:
    # Two images, captions equal to them, the first with a negative equal to its caption, tau 1: logits 1 and 0.
    v = torch.eye(2, dtype=torch.float64)
    n, there = v[:, None], torch.tensor([[True], [False]])
    s, e = similarities(v, v, n, there, 1.0), math.e
    con = math.log(1 + 1 / e)
    assert OBJECTIVES["con"](s, Terms()).item() == pytest.approx(con)
    assert OBJECTIVES["con"](s, Terms(printed=True)).item() == pytest.approx(-1)  # -log(e / 1), both ways
    first, second = math.log(2 + 1 / e), math.log(1 + 2 / e)  # captions and the one negative of image 1
    assert OBJECTIVES["negcon"](s, Terms()).item() == pytest.approx(((first + second) / 2 + con) / 2)
    assert OBJECTIVES["negcon"](s, Terms(halved=True)).item() == pytest.approx(((first + second) / 4 + con) / 2)
    assert concon(s).tolist() == pytest.approx([math.log(1 + 1 / e), math.log(1 + 2 / e)])
    assert context_nce(s).tolist() == pytest.approx([math.log(2), 0])


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("printed", [False, True])
@pytest.mark.parametrize("size", [B, 1])
def test_gradients_are_right(objective: str, printed: bool, size: int) -> None:
    v, p, n, there = data(2, size)
    scale = torch.tensor(5.0, dtype=torch.float64)

    def total(v: Tensor, p: Tensor, n: Tensor, scale: Tensor) -> Tensor:
        return OBJECTIVES[objective](
            similarities(unit(v), unit(p), unit(n), there, scale), Terms(printed, alpha=0.3)
        )

    inputs = tuple(x.clone().requires_grad_() for x in (v, p, n, scale))
    assert torch.autograd.gradcheck(total, inputs)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_order_and_absent_negatives_do_not_matter(objective: str) -> None:
    v, p, n, there = data(3)
    before = OBJECTIVES[objective](similarities(v, p, n, there, 5.0), Terms())
    turned = torch.tensor([2, 0, 3, 1])
    again = similarities(v[turned], p[turned], n[turned].flip(1), there[turned].flip(1), 5.0)
    torch.testing.assert_close(OBJECTIVES[objective](again, Terms()), before)
    junk = torch.where(there[:, :, None], n, 7.0)
    torch.testing.assert_close(OBJECTIVES[objective](similarities(v, p, junk, there, 5.0), Terms()), before)


def test_without_any_negative_spread_is_con_but_for_alpha() -> None:
    v, p, n, _ = data(4)
    s = similarities(v, p, n, torch.zeros(B, K, dtype=torch.bool), 5.0)
    con = OBJECTIVES["con"](s, Terms())
    torch.testing.assert_close(OBJECTIVES["spread"](s, Terms(alpha=0.0)), con)
    torch.testing.assert_close(OBJECTIVES["negcon"](s, Terms()), con)
    assert context_nce(s).abs().max() == 0


def test_large_scales_stay_finite() -> None:
    v, p, n, there = data(5)
    for objective in OBJECTIVES.values():
        x = v.float().requires_grad_()
        value = objective(similarities(x, p.float(), n.float(), there, 1000.0), Terms())
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(x.grad).all()
