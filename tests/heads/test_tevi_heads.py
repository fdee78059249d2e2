from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vlpipe.foundation.config import resolve
from vlpipe.foundation.errors import StaleError, UsageError, VlpipeError
from vlpipe.heads.contracts import SHELF, Batch, Shapes
from vlpipe.heads.editing import Editor, nearest_texts
from vlpipe.heads.kinds import tevi as module
from vlpipe.heads.runs import Run

WIDTH, LATENTS, ACTIVE = 6, 10, 4
World = Any
SMALL = {"latents": LATENTS, "k": ACTIVE}


def autoencoder(width: int = WIDTH, seed: int = 3) -> Any:
    torch.manual_seed(seed)
    sae = SHELF.load("sae")
    under = sae(resolve(sae.Config, SMALL), Shapes({"image": (width,)}))
    with torch.no_grad():
        under.autoencoder.b_pre.copy_(torch.randn(width))
    return under


def made(kind: str = "tevi", under: Any = None, width: int = WIDTH, seed: int = 0, **settings: Any) -> Any:
    torch.manual_seed(seed)
    head = SHELF.load(kind)
    shapes = Shapes({"image": (WIDTH,), "text": (width,)}, {"text": {"logit_scale": 20.0}})
    if kind == "tevi":
        shapes = Shapes(shapes.rows, shapes.constants, heads={"image": under or autoencoder()})
    return head(resolve(head.Config, settings), shapes)


def rows(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def encoded(head: Any, images: Tensor, texts: Tensor) -> tuple[Batch, Batch]:
    ids = [str(n) for n in range(max(len(images), len(texts)))]
    left = head.images(Batch(ids[: len(images)], {"image": images}))
    return left, head.texts(Batch(ids[: len(texts)], {"text": texts}))


def network_by_hand(head: Any, raw: Tensor) -> Tensor:
    """Three linear layers, ReLU between, sigmoid at the end."""
    layers = [layer for layer in head.network if isinstance(layer, torch.nn.Linear)]
    hidden = raw
    for n, layer in enumerate(layers):
        hidden = hidden @ layer.weight.double().T + layer.bias.double()
        hidden = torch.sigmoid(hidden) if n == len(layers) - 1 else hidden.clamp(min=0)
    assert len(layers) == 3
    return hidden


def test_score_is_the_cosine_of_the_edited_image_with_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MASK_BYTES", 2 * LATENTS * 8)  # two texts at a time
    head = made(hidden=5).double()
    images, texts = rows(4), rows(5, seed=2)
    found = head.score(*encoded(head, images, texts)).detach()
    sae = head.under.autoencoder
    values, indices = sae.encode(images)
    masks = network_by_hand(head, texts)
    for i in range(4):
        for j in range(5):
            v = sae.b_pre.detach().clone()
            for value, latent in zip(values[i], indices[i], strict=True):
                v = v + (value * masks[j, latent] * sae.W_dec[latent]).detach()
            expected = v @ texts[j] / v.norm() / texts[j].norm()
            assert float(found[i, j]) == pytest.approx(float(expected), abs=1e-9)


def test_smartclip_masks_the_raw_embedding() -> None:
    head = made("smartclip").double()
    images, texts = rows(4), rows(3, seed=2)
    found = head.score(*encoded(head, images, texts)).detach()
    masks = network_by_hand(head, texts).detach()
    for i in range(4):
        for j in range(3):
            v = images[i] * masks[j]
            expected = v @ texts[j] / v.norm() / texts[j].norm()
            assert float(found[i, j]) == pytest.approx(float(expected), abs=1e-9)


@pytest.mark.parametrize("kind", ["tevi", "smartclip"])
@pytest.mark.parametrize("equation", [10, 11])
def test_training_reads_the_equations_cosines(kind: str, equation: int) -> None:
    head = made(kind, equation=equation).double()
    images, texts = rows(4), rows(4, seed=2)
    left, right = encoded(head, images, texts)
    found = head.batch_cosines(images, head.adapted(texts)).detach()
    every = head.score(left, right).detach()
    if equation == 11:
        torch.testing.assert_close(found, every, atol=1e-9, rtol=0)
        return
    edited = head.edited(left, head.keep(right)).detach()
    expected = edited / edited.norm(dim=1, keepdim=True) @ right.x["text"].T
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    torch.testing.assert_close(found.diagonal(), every.diagonal(), atol=1e-9, rtol=0)


def test_without_a_mask_images_are_reconstructions() -> None:
    head = made(mask="none").double()
    left, right = encoded(head, rows(4), rows(3, seed=2))
    rebuilt = head.under.autoencoder(rows(4)).detach()
    expected = rebuilt / rebuilt.norm(dim=1, keepdim=True) @ right.x["text"].T
    torch.testing.assert_close(head.score(left, right).detach(), expected)


def trained(head: Any, steps: int = 30) -> list[float]:
    head.configure(steps)
    batch = Batch([""] * 16, {"image": rows(16).float(), "text": rows(16, seed=2).float()})
    return [head.update(batch)["loss"] for _ in range(steps)]


@pytest.mark.parametrize("kind", ["tevi", "smartclip", "text_adapter"])
def test_training_lowers_the_loss_and_leaves_the_images_alone(kind: str) -> None:
    head = made(kind, lr=0.01, text_lr=0.001, text_side="adapter")
    before = {name: value.clone() for name, value in head.state_dict().items() if name.startswith("under.")}
    losses = trained(head)
    assert losses[-1] < losses[0] - 0.02
    for name, value in before.items():
        assert torch.equal(head.state_dict()[name], value)
    assert head.adapter.weight.abs().max() > 0


def test_the_text_side_learns_at_its_own_rate() -> None:
    head = made(lr=0.01, text_lr=0.0001, text_side="adapter", weight_decay=0.0)
    before = head.network[0].weight.clone()
    trained(head, steps=1)
    assert float(head.adapter.weight.detach().abs().max()) == pytest.approx(0.0001, rel=0.05)  # Adam's first step
    assert float((head.network[0].weight - before).detach().abs().max()) == pytest.approx(0.01, rel=0.05)


def test_an_adapter_starts_as_the_cached_texts() -> None:
    with_adapter, without = made(text_side="adapter").double(), made().double()
    texts = Batch(["a"], {"text": rows(1)})
    assert torch.equal(with_adapter.texts(texts).x["text"], without.texts(texts).x["text"])


def test_the_temperature_starts_at_the_encoders_and_stays_in_bounds() -> None:
    assert made().report()["temperature"] == pytest.approx(1 / 20)
    fixed = made(temperature=0.5)
    trained(fixed, 3)
    assert fixed.report()["temperature"] == pytest.approx(0.5)
    hot = made(temperature=None, lr=10.0)
    trained(hot, 5)
    assert hot.report()["temperature"] >= 0.01 - 1e-6


def test_zero_images_and_masks_are_stated_results() -> None:
    head = made().double()
    left, right = encoded(head, torch.zeros(2, WIDTH, dtype=torch.float64), torch.zeros(2, WIDTH).double())
    assert torch.equal(head.score(left, right), torch.zeros(2, 2, dtype=torch.float64))
    with torch.no_grad():
        head.network[-2].bias.fill_(-1e4)  # nothing is kept
        head.network[-2].weight.zero_()
    left, right = encoded(head, rows(2), rows(2, seed=2))
    assert torch.equal(head.keep(right), torch.zeros(2, LATENTS, dtype=torch.float64))
    bias = head.under.autoencoder.b_pre.detach()
    expected = (bias / bias.norm()) @ right.x["text"].T
    torch.testing.assert_close(head.score(left, right)[0], expected)


def test_what_cannot_be_edited_is_refused() -> None:
    with pytest.raises(VlpipeError, match=r"7 values a row and the autoencoder's images 6"):
        made(width=7)
    with pytest.raises(VlpipeError, match=r"stands on a finished sae or cg_sae run"):
        made(under=made("smartclip"))
    for kind in ("smartclip", "text_adapter"):
        with pytest.raises(VlpipeError, match=r"6 values a row and texts 7.*ridge"):
            made(kind, width=7)
    with pytest.raises(UsageError, match="equation"):
        made(equation=12)


def test_the_editing_call_equals_equation_9() -> None:
    head = made(hidden=5).double()
    editor = Editor.of(head)
    images, texts = rows(3), rows(3, seed=2)
    edited = editor.edit(images, texts)
    values, indices = head.under.autoencoder.encode(images)
    masks = network_by_hand(head, texts).detach()
    for i in range(3):
        v = head.under.autoencoder.b_pre.detach().clone()
        for value, latent in zip(values[i], indices[i], strict=True):
            v = v + value * masks[i, latent] * head.under.autoencoder.W_dec[latent].detach()
        torch.testing.assert_close(edited[i], v)
    with pytest.raises(VlpipeError, match="3 images and 2 texts"):
        editor.edit(images, texts[:2])
    with pytest.raises(VlpipeError, match=r"\(3, 5\).*\(rows, 6\)"):
        editor.edit(images[:, :5], texts)


def test_latents_are_named_and_told_strongest_first() -> None:
    head = made(hidden=5).double()
    text, image = rows(1, seed=2)[0], rows(1)[0]
    mask = network_by_hand(head, text[None])[0].detach()
    editor = Editor.of(head)
    kept, removed = editor.kept(text, top=3), editor.removed(text, top=LATENTS)
    assert [found.latent for found in kept] == mask.argsort(descending=True)[:3].tolist()
    assert [found.latent for found in removed] == mask.argsort().tolist()
    assert kept[0].strength == pytest.approx(float(mask.max()))
    values, indices = head.under.autoencoder.encode(image[None])
    product = torch.zeros(LATENTS, dtype=torch.float64)
    product[indices[0]] = values[0] * mask[indices[0]]
    of_image = editor.kept(image=image, text=text)
    assert [found.latent for found in of_image] == product.argsort(descending=True)[: len(of_image)].tolist()
    assert len(of_image) <= ACTIVE
    concepts = head.under.autoencoder.W_dec[[4, 1]].detach() * 3
    named = editor.named(["four", "one"], concepts)
    assert (named.names[4], named.names[1]) == ("four", "one")
    with pytest.raises(UsageError, match="does not edit"):
        Editor.of(made("text_adapter"))
    with pytest.raises(UsageError, match="no direction"):
        Editor.of(made("smartclip")).named(["a"], rows(1))


def test_nearest_texts_are_by_cosine_not_by_length() -> None:
    directions = torch.tensor([[1.0, 0.1], [0.1, 1.0]])
    texts = torch.tensor([[0.0, 0.5], [100.0, 90.0], [2.0, 0.0]])
    assert nearest_texts(directions, texts).tolist() == [2, 0]


def stood(made: World, **settings: Any) -> tuple[Run, Run]:
    """An sae run, and a tevi run on it."""
    fast = {"epochs": 2, "batch_size": 8}
    sae = made.trained("sae", **SMALL, **fast).run
    source = {"image": f"enc:a#pooled::{sae.id}"}
    return sae, made.trained("tevi", sources=source, **fast, **settings).run


def test_a_run_stands_on_its_autoencoder_and_comes_back_to_the_bit(world: Callable[..., World]) -> None:
    made = world()
    sae, run = stood(made)
    head, again = run.head(), Run.open(made.runs, run.id).head()
    images, texts = rows(4).float(), rows(3, seed=2).float()
    scores = head.score(*encoded(head, images, texts))
    assert torch.equal(again.score(*encoded(again, images, texts)), scores)
    mine, theirs = head.under.autoencoder, sae.head().autoencoder
    assert torch.equal(mine.W_dec, theirs.W_dec)
    assert torch.isfinite(scores).all()
    edited = Editor.open(made.runs, run.id).edit(images[:3], texts)
    assert edited.shape == (3, WIDTH)


def test_an_autoencoder_of_other_features_is_stale(world: Callable[..., World]) -> None:
    made = world()
    sae, _ = stood(made)
    made.store("enc:b", "image", np.ones((40, WIDTH)), weights="w1")
    with pytest.raises(StaleError, match="w1"):
        made.plan("tevi", sources={"image": f"enc:b#pooled::{sae.id}"})
    with pytest.raises(UsageError, match="stands on a finished run"):
        made.plan("tevi")
