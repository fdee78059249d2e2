from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from vlpipe.backbones.contracts import SHELF, Stepped
from vlpipe.backbones.objectives.clip import Clip, ClipConfig
from vlpipe.foundation.config import resolve
from vlpipe.foundation.errors import UsageError


def reference(images: npt.NDArray[np.float64], texts: npt.NDArray[np.float64], scale: float) -> float:
    """Term by term: -log of each pair's share of its row and of its column."""
    rows, captions = texts.shape[:2]
    total = 0.0
    for k in range(captions):
        logits = np.zeros((rows, rows))
        for i in range(rows):
            for j in range(rows):
                image, text = images[i], texts[j, k]
                logits[i, j] = scale * (image @ text) / math.sqrt((image @ image) * (text @ text))
        for i in range(rows):
            total -= logits[i, i] - math.log(sum(math.exp(logits[i, j]) for j in range(rows)))
            total -= logits[i, i] - math.log(sum(math.exp(logits[j, i]) for j in range(rows)))
    return float(total / (2 * rows * captions))


def loss(images: Tensor, texts: Tensor, temperature: float = 0.07) -> Tensor:
    return Clip(ClipConfig(initial_temperature=temperature)).loss(images, texts, {})["loss"]


@pytest.mark.parametrize(("rows", "captions", "width"), [(1, 1, 3), (2, 1, 4), (5, 3, 7)])
def test_the_loss_is_the_printed_sum(rows: int, captions: int, width: int) -> None:
    rng = np.random.default_rng(rows)
    images, texts = rng.normal(size=(rows, width)), rng.normal(size=(rows, captions, width))
    expected = reference(images, texts, 1 / 0.07)
    assert loss(torch.tensor(images), torch.tensor(texts)).item() == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_by_hand_two_orthogonal_pairs() -> None:
    eye = torch.eye(2)
    assert loss(eye, eye[:, None], temperature=1.0).item() == pytest.approx(math.log(1 + math.exp(-1)))
    assert loss(eye, eye.flip(0)[:, None], temperature=1.0).item() == pytest.approx(1 + math.log(1 + math.exp(-1)))


def test_gradients_are_those_of_the_differences() -> None:
    torch.manual_seed(0)
    objective = Clip(ClipConfig()).double()
    images = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    texts = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)

    def of(log_scale: Tensor, images: Tensor, texts: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(objective, {"log_scale": log_scale}, (images, texts))
        return found

    objective.forward = lambda images, texts: objective.loss(images, texts, {})["loss"]
    scale = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(of, (scale, images, texts))


def test_lengths_do_not_matter_and_order_of_rows_neither() -> None:
    torch.manual_seed(1)
    images, texts = torch.randn(6, 5), torch.randn(6, 2, 5)
    value = loss(images, texts).item()
    assert loss(7 * images, texts / 3).item() == pytest.approx(value, rel=1e-5)
    order = torch.randperm(6)
    assert loss(images[order], texts[order]).item() == pytest.approx(value, rel=1e-5)
    assert loss(images, texts.flip(1)).item() == pytest.approx(value, rel=1e-5)


def test_degenerate_rows_give_a_finite_loss_and_gradient() -> None:
    images = torch.zeros(4, 5, requires_grad=True)
    value = loss(images, torch.zeros(4, 1, 5))
    value.backward()  # type: ignore[no-untyped-call]
    assert value.item() == pytest.approx(math.log(4))
    assert images.grad is not None
    assert torch.isfinite(images.grad).all()


def test_half_precision_is_computed_in_single() -> None:
    torch.manual_seed(2)
    images, texts = torch.randn(8, 5), torch.randn(8, 1, 5)
    value = loss(images.bfloat16(), texts.bfloat16())
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(
        loss(images.bfloat16().float(), texts.bfloat16().float()).item(), rel=1e-6
    )


def test_the_scale_stays_below_100_and_can_come_down() -> None:
    objective = Clip(ClipConfig(initial_temperature=0.005))
    assert isinstance(objective, Stepped)
    objective.after_step()
    assert objective.log_scale.item() == pytest.approx(math.log(100))
    wrong = torch.eye(2)
    objective.loss(wrong, wrong.flip(0)[:, None], {})["loss"].backward()  # type: ignore[no-untyped-call]
    assert objective.log_scale.grad is not None
    assert objective.log_scale.grad.item() > 0


def test_the_shelf_has_it_and_its_settings_are_checked() -> None:
    assert "clip" in SHELF.names()
    assert SHELF.load("clip") is Clip
    with pytest.raises(UsageError, match="initial_temperature"):
        resolve(ClipConfig, {"initial_temperature": 0.0})
