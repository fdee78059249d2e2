"""Autoencoders and editing on features that say nothing, with wrong sizes, and through the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from vlpipe.evaluate.run import evaluate
from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.commands import train_head
from vlpipe.heads.contracts import SHELF, Batch, Shapes
from vlpipe.heads.sae_sparse import active, decode
from vlpipe.heads.tevi_scores import edited_cosines

World = Any
Maker = Callable[..., World]
FAST = {"epochs": 2, "batch_size": 8}
SMALL = {"latents": 12, "k": 4, **FAST}


def command(made: World, kind: str, source: str, *arguments: str) -> Result:
    paths = ["--manifest", str(made.manifest.folder), "--cache", str(made.cache), "--runs", str(made.runs)]
    given = ["--source", f"image={source}", "--set", "epochs=1", *arguments]
    return CliRunner().invoke(train_head, [kind, *given, *paths])


def refusal(result: Result) -> tuple[int, str]:
    assert isinstance(result.exception, VlpipeError), result.output
    return result.exception.exit_code, str(result.exception)


def test_the_papers_settings_are_the_defaults() -> None:
    """Appendices A.1 and B.1; the mask's warm-up is 5 of 25 epochs."""
    cg_sae, sae, tevi = (SHELF.load(kind).Config() for kind in ("cg_sae", "sae", "tevi"))
    assert (cg_sae.k, cg_sae.aux_k, cg_sae.epochs, cg_sae.lr) == (12, 18, 200, 1e-2)
    assert (sae.k, sae.aux_k, sae.epochs, sae.expansion, sae.aux_weight) == (128, 256, 50, 32, 1 / 32)
    assert (tevi.equation, tevi.hidden, tevi.epochs, tevi.warmup * tevi.epochs) == (11, None, 25, 5)


def test_the_command_names_what_is_wrong_and_its_code(world: Maker) -> None:
    made = world()
    code, said = refusal(command(made, "sae", "enc:a", "--set", "latents=12", "--set", "k=13"))
    assert (code, said.startswith("k = 13 active latents of 12: expected 1 to 12")) == (1, True)
    sae = made.trained("sae", **SMALL).run.id
    made.store("enc:b", "image", made.arrays["enc:a", "image"], weights="other")
    text = "--source", "text=enc:a"
    code, said = refusal(command(made, "tevi", f"enc:b::{sae}", *text))
    assert (code, "trained on other 'image' features" in said) == (4, True)
    code, said = refusal(command(made, "tevi", "enc:a", *text))
    assert (code, "stands on a finished run" in said) == (2, True)
    ridge = made.trained("ridge").run.id
    code, said = refusal(command(made, "tevi", f"enc:a::{ridge}", *text))
    assert (code, "its images come from a head '" in said) == (1, True)


def test_texts_of_another_width_are_refused_by_the_command(world: Maker) -> None:
    made = world(text_width=5)
    sae = made.trained("sae", **SMALL).run.id
    code, said = refusal(command(made, "tevi", f"enc:a::{sae}", "--source", "text=enc:a"))
    assert (code, "texts have 5 values a row and the autoencoder's images 6" in said) == (1, True)


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_equal_images_are_edited_and_never_found(world: Maker, value: float) -> None:
    """Every image looks the same after editing, too: ties count against all of them."""
    made = world()
    made.store("enc:same", "image", np.full((40, 6), value))
    sae = made.trained("sae", sources={"image": "enc:same"}, **SMALL).run
    assert "explained_variance" not in sae.scalars
    assert all(np.isfinite(list(sae.scalars.values())))
    sources = {"image": f"enc:same::{sae.id}", "text": "enc:a"}
    run = made.trained("tevi", sources=sources, text_side="adapter", **FAST).run
    found = evaluate(made.runs, run.id, options={"ks": [1]}).entries
    assert found["t2i_recall@1"].value == 0
    assert found["i2t_recall@1"].value <= 1 / found["i2t_recall@1"].rows
    cosines = evaluate(made.runs, run.id, "pair_cosines").entries
    assert np.isfinite(cosines["cosine_edited"].value)


@pytest.mark.parametrize("equation", [10, 11])
@pytest.mark.parametrize("kind", ["tevi", "smartclip"])
def test_a_mask_that_keeps_nothing_learns_without_harm(kind: str, equation: int) -> None:
    """The edited images are the bias, which is zero: their cosines are 0, and so are all gradients to the mask."""
    head = edits_nothing(kind, equation)
    before = {name: value.clone() for name, value in head.named_parameters()}
    generator = torch.Generator().manual_seed(1)
    rows = Batch([""] * 5, {side: torch.randn(5, 6, generator=generator) for side in ("image", "text")})
    scalars = head.update(rows)
    assert scalars["loss"] == pytest.approx(np.log(5), abs=1e-5)
    assert scalars["positive"] == 0
    for name, value in head.named_parameters():
        assert torch.isfinite(value).all()
        if name.startswith("network"):
            torch.testing.assert_close(value, before[name], atol=0, rtol=0)


def edits_nothing(kind: str, equation: int) -> Any:
    """A head whose mask is 0 for every text."""
    torch.manual_seed(0)
    sae, head_class = SHELF.load("sae"), SHELF.load(kind)
    under = sae(sae.Config(latents=12, k=4, start="zero"), Shapes({"image": (6,)}))
    config = head_class.Config(equation=equation, weight_decay=0.0)
    head: Any = head_class(config, Shapes({"image": (6,), "text": (6,)}, heads={"image": under}))
    head.configure(1)
    with torch.no_grad():
        head.network[-2].weight.zero_()
        head.network[-2].bias.fill_(-1e4)
    return head


@pytest.mark.gpu
def test_a_gpu_gives_the_same_codes_scores_and_gradients() -> None:
    """One code for both; in float64, where rounding decides no selection."""
    given = {}
    for device in ("cpu", "cuda"):
        generator = torch.Generator().manual_seed(0)
        x, weight, texts, keep = (
            torch.randn(*shape, generator=generator, dtype=torch.float64).to(device).requires_grad_()
            for shape in ((9, 16), (64, 16), (7, 16), (7, 64))
        )
        bias = torch.zeros(64, dtype=torch.float64, device=device)
        values, pattern = active(x, weight, bias, 8)
        loss = decode(values.relu(), pattern, weight).square().sum()
        fixed = values.detach().relu(), pattern.indices, weight.detach(), bias[:16]
        scores = edited_cosines(*fixed, keep.sigmoid(), texts)
        (loss + scores.square().sum()).backward()  # type: ignore[no-untyped-call]
        grads = [one.grad for one in (x, weight, texts, keep)]
        given[device] = [one.detach().cpu() for one in (values, scores, *grads) if one is not None]
    for ours, theirs in zip(given["cpu"], given["cuda"], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)
