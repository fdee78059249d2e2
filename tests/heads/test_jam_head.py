"""JAM and the projections: losses, schedules, sizes, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.contracts import Batch, Shapes
from vlpipe.heads.jam_losses import OBJECTIVES, Terms, similarities
from vlpipe.heads.jam_model import funnel
from vlpipe.heads.kinds.jam import Jam
from vlpipe.heads.kinds.projection import Projection
from vlpipe.heads.vectors import unit


def shapes(image: int = 6, text: int = 5, negative: int | None = None) -> Shapes:
    return Shapes({"image": (image,), "text": (text,), "negative": (negative or text,)})


def rows(size: int = 6, image: int = 6, text: int = 5, most: int = 2, seed: int = 0) -> Batch:
    """A step's rows, of which the first image has no negatives and the second one."""
    generator = torch.Generator().manual_seed(seed)
    x = {
        "image": torch.randn(size, image, generator=generator),
        "text": torch.randn(size, text, generator=generator),
        "negative": torch.randn(size, most, text, generator=generator),
    }
    there = torch.ones(size, most, dtype=torch.bool)
    there[:1], there[1:2, 1:] = False, False
    x["negative"][~there] = 0
    mask = {name: torch.ones(size, dtype=torch.bool) for name in ("image", "text")}
    return Batch([str(n) for n in range(size)], x, mask | {"negative": there})


def test_the_loss_is_the_objective_and_both_reconstructions() -> None:
    config = Jam.Config(negatives=2, dropout=0.0, hidden=[7], latent=3, epochs=5, alpha=0.3)
    head = Jam(config, shapes())
    batch = rows()
    head.prepare(lambda: iter([rows(50, seed=1)]))
    head.configure(10)
    for steps, weight in ((0, 1.0), (2, 0.775), (5, 0.55), (9, 0.1)):  # two steps an epoch, five epochs
        head.steps = steps
        got = {name: float(value.detach()) for name, value in head.loss(batch).items()}
        fit = rows(50, seed=1)
        every = {
            "image": fit.x["image"],
            "text": torch.cat([fit.x["text"], fit.x["negative"][fit.mask["negative"]]]),
        }
        moved = {side: (r.double().mean(0), r.double().std(0, unbiased=False)) for side, r in every.items()}
        v_in = (batch.x["image"] - moved["image"][0]) / moved["image"][1]
        there = batch.mask["negative"]
        t_in = torch.cat([batch.x["text"], batch.x["negative"][there]]).double()
        t_in = (t_in - moved["text"][0]) / moved["text"][1]
        v, t = (head.encoders[s](r.float()) for s, r in (("image", v_in), ("text", t_in)))
        errors = [
            ((head.decoders[s](c) - r) ** 2).mean().item() for s, c, r in (("image", v, v_in), ("text", t, t_in))
        ]
        n = torch.zeros(6, 2, 3)
        n[there] = t[6:]
        s = similarities(unit(v), unit(t[:6]), unit(n), there, 1 / 0.07)
        align = OBJECTIVES["spread"](s, Terms(alpha=0.3)).item()
        assert got["align"] == pytest.approx(align, abs=1e-5)
        assert got["reconstruction_image"] == pytest.approx(weight * errors[0], rel=1e-4)
        assert got["reconstruction_text"] == pytest.approx(weight * errors[1], rel=1e-4)
        assert got["loss"] == pytest.approx(align + weight * sum(errors), rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.5] * 5),
        ({"schedule": "linear"}, [0, 0.25, 0.5, 0.75, 1]),
        ({"schedule": "linear", "alpha_start": 1.0, "alpha_end": 0.5}, [1, 0.875, 0.75, 0.625, 0.5]),
        ({"schedule": "grid", "alpha_grid": [0.1, 0.9]}, [0.1, 0.1, 0.1, 0.9, 0.9]),
    ],
)
def test_alpha_follows_its_schedule(settings: dict[str, Any], expected: list[float]) -> None:
    head = Projection(Projection.Config(epochs=5, **settings), shapes())
    head.configure(15)
    found = []
    for epoch in range(5):
        head.steps = 3 * epoch + 2
        found.append(head.terms().alpha)
    assert found == pytest.approx(expected)


def test_the_scale_is_learned_and_bounded_or_fixed() -> None:
    head = Projection(Projection.Config(lr=10.0), shapes())
    assert head.temperature(head.texts(rows())).tolist() == pytest.approx([0.07] * 6)
    for _ in range(5):
        head.update(rows())
        assert head.logit_scale.exp().item() <= 100.001
    assert head.report()["temperature"] != pytest.approx(0.07)
    fixed = Projection(Projection.Config(lr=10.0, temperature=0.07), shapes())
    fixed.update(rows())
    assert fixed.report()["temperature"] == pytest.approx(0.07)


def test_sizes_are_of_the_order_of_table_13() -> None:
    def both(width: int) -> float:
        return Jam(Jam.Config(), shapes(width, width)).report()["parameters"] / 2e6

    assert both(768) == pytest.approx(8.41, abs=0.01)  # Table 13: 7.26
    assert both(2304) == pytest.approx(9.99, abs=0.01)  # Table 13: 11.55
    # 768 -> 512 and thrice (512 -> 1024, two of 512 -> 512), twice 512 -> 512 between them, 512 -> 256
    one = 768 * 512 + 3 * (512 * 1024 + 2 * 512 * 512) + 2 * 512 * 512 + 512 * 256
    assert Jam(Jam.Config(reconstruction=False), shapes(768, 768)).report()["flops"] == 2 * 2 * one
    assert Jam(Jam.Config(), shapes(768, 768)).report()["flops"] == 2 * 4 * one
    linear = Projection(Projection.Config(), shapes(2304, 768)).report()
    assert (linear["parameters"], linear["flops"]) == (3072 * 256 + 2 * 256 + 1, 2 * 3072 * 256)
    deep = Projection(Projection.Config(layers="nonlinear"), shapes(2304, 768)).report()
    assert deep["flops"] == 2 * (3072 * 512 + 2 * 512 * 256)


def test_a_funnel_is_made_as_the_paper_says() -> None:
    model = funnel(6, [4, 3], 2, 0.25)
    names = [type(layer).__name__ for layer in model]
    assert names == ["Linear", "LayerNorm", "SwiGlu", "Dropout", "ResidualMlp"] * 2 + ["Linear"]
    x = torch.randn(5, 6)
    model.eval()
    first, norm, glu, _, block = (model[n] for n in range(5))
    h = norm(first(x))
    gate, value = glu.both(h)[:, :4], glu.both(h)[:, 4:]
    h = gate * torch.sigmoid(gate) * value
    h = h + block.mlp(h)
    torch.testing.assert_close(nn.Sequential(*list(model)[:5])(x), h)
    assert model(x).shape == (5, 2)


def test_the_recall_that_decides_equals_loops() -> None:
    head = Projection(Projection.Config(latent=5), shapes(5))
    head.projections["image"].load_state_dict(head.projections["text"].state_dict())
    generator = torch.Generator().manual_seed(1)
    x = {"image": torch.randn(30, 5, generator=generator)}
    x["text"] = x["image"][:, None] + torch.randn(30, 2, 5, generator=generator)
    x["negative"] = torch.randn(30, 3, 5, generator=generator)
    mask = {"text": torch.rand(30, 2, generator=generator) > 0.2, "negative": torch.rand(30, 3) > 0.5}
    mask["text"][:, 0] = True
    v = head.images(Batch([], {"image": x["image"]})).x["image"]
    candidates, owner = [], []
    for name in ("text", "negative"):
        for i in range(30):
            for k in range(x[name].shape[1]):
                if mask[name][i, k]:
                    candidates.append(head.texts(Batch([], {"text": x[name][i, k][None]})).x["text"][0])
                    owner.append(i if name == "text" else -1)
    hits = [owner[int(torch.stack([a @ c for c in candidates]).argmax())] == i for i, a in enumerate(v)]
    assert 0 < sum(hits) < 30
    assert head.recall(Batch([""] * 30, x, mask)) == pytest.approx(np.mean(hits))


def test_widths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(VlpipeError, match="'negative' has 4 values a row and 'text' 5"):
        Jam(Jam.Config(), shapes(negative=4))


def test_constant_columns_become_zero_and_are_reconstructed() -> None:
    head = Jam(Jam.Config(hidden=[8], latent=4, dropout=0.0), shapes())
    fit = rows(40, seed=3)
    fit.x["image"][:, 2], fit.x["text"][:, 1], fit.x["negative"][..., 1] = 1000.1, -3.0, -3.0
    head.prepare(lambda: iter([fit]))
    batch = rows()
    batch.x["image"][:, 2] = 1000.1
    assert head._scaled("image", batch.x["image"])[:, 2].abs().max() == 0
    assert all(torch.isfinite(value) for value in head.loss(batch).values())


def test_a_batch_of_one_counts_nothing_under_printed_denominators() -> None:
    head = Projection(Projection.Config(denominator="printed", objective="con"), shapes())
    assert head.update(rows(2))["align"] != 0
    one = Projection(Projection.Config(denominator="printed", objective="con"), shapes())
    assert one.update(rows(1, most=1))["align"] == 0
