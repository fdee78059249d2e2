"""Editing as a call: raw rows through the runs before the head, and what is wrong with what is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vlpipe.foundation.errors import StaleError, VlpipeError
from vlpipe.foundation.files import file_digest
from vlpipe.heads.checkpoint import load_tensors, save_tensors
from vlpipe.heads.contracts import SHELF, Shapes
from vlpipe.heads.editing import Editor
from vlpipe.heads.folder import STATUS, WEIGHTS
from vlpipe.heads.runs import Run, open_joined

World = Any
SMALL = {"latents": 10, "k": 4}


def editor_of(kind: str = "tevi") -> Editor:
    """A head of 6 values a row, in float64."""
    torch.manual_seed(0)
    sae, head = SHELF.load("sae"), SHELF.load(kind)
    under: Any = sae(sae.Config(**SMALL), Shapes({"image": (6,)}))
    made: Any = head(head.Config(hidden=5), Shapes({"image": (6,), "text": (6,)}, heads={"image": under}))
    return Editor.of(made.double())


def rows(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_raw_rows_pass_the_runs_before_the_autoencoder(world: Callable[..., World]) -> None:
    """Images of 9 values and texts of 7, through a projection each, then an sae on the images alone."""
    made = world(image_width=9, text_width=7)
    fast = {"epochs": 2, "batch_size": 8}
    step = made.trained("projection", objective="con", latent=6, **fast).run
    sae = made.trained("sae", sources={"image": f"enc:a::{step.id}"}, **SMALL, **fast).run
    sources = {"image": f"enc:a::{step.id}::{sae.id}", "text": f"enc:a::{step.id}"}
    run = made.trained("tevi", sources=sources, **fast).run
    joined, editor = open_joined(run), Editor.open(made.runs, run.id)
    raw = [torch.from_numpy(made.arrays["enc:a", side][:3]).float() for side in ("image", "text")]
    images, texts = joined.image_batch(np.arange(3)).x["image"], joined.text_batch(np.arange(3), "text").x["text"]
    assert images.shape == texts.shape == (3, 6)
    inside = Editor.of(run.head())
    torch.testing.assert_close(editor.edit(*raw), inside.edit(images, texts))
    torch.testing.assert_close(editor.edit(*(rows.double().numpy() for rows in raw)), inside.edit(images, texts))
    mine, theirs = editor.kept(raw[1][0], raw[0][0]), inside.kept(texts[0], images[0])
    assert [found.latent for found in mine] == [found.latent for found in theirs]
    assert [found.strength for found in mine] == pytest.approx([found.strength for found in theirs], rel=1e-5)
    names = ["a", "b", "c"]
    assert editor.named(names, raw[1]).names == inside.named(names, texts).names
    editor.head.to("meta")  # the runs before it stay where they are
    assert editor.edit(*raw).is_meta
    with pytest.raises(VlpipeError, match=r"image features of shape \(3, 6\): expected \(rows, 9\)"):
        editor.edit(images, raw[1])
    with pytest.raises(VlpipeError, match=r"text features of shape \(3, 6\): expected \(rows, 7\)"):
        editor.edit(raw[0], texts)
    retrained(step)
    with pytest.raises(StaleError, match=f"'{step.id}', which has been trained again"):
        Editor.open(made.runs, run.id)


def retrained(run: Run) -> None:
    """Another machine's weights under the same id."""
    path = run.folder / WEIGHTS
    save_tensors(path, {name: tensor * 2 for name, tensor in load_tensors(path, "").items()})
    (run.folder / STATUS).write_text(json.dumps(run.status | {"weights": file_digest(path)}))


BAD: list[tuple[str, Callable[[Editor, Tensor], Any]]] = [
    ("top = -1: expected 0 or more", lambda editor, x: editor.kept(x[0], top=-1)),
    (r"a text of shape \(3, 6\): expected \(6,\)", lambda editor, x: editor.kept(x)),
    (r"an image of shape \(3, 6\): expected \(6,\)", lambda editor, x: editor.removed(x[0], x)),
    (r"a text of shape \(1, 6\): expected \(6,\)", lambda editor, x: editor.kept(x[:1])),
    (r"text features of shape \(6,\): expected \(rows, 6\)", lambda editor, x: editor.edit(x, x[0])),
    (r"image features of shape \(\): expected \(rows, 6\)", lambda editor, x: editor.edit(x[0, 0], x)),
    ("2 names and 3 rows of features: expected one row a text", lambda editor, x: editor.named(["a", "b"], x)),
    ("no text to name latents by", lambda editor, x: editor.named([], x[:0])),
    ("image features are NaN or infinite in rows 0, 2: ", lambda editor, x: editor.edit(spoilt(x), x)),
    ("text features are NaN or infinite in rows 0, 2: ", lambda editor, x: editor.named(["a"] * 3, spoilt(x))),
    ("text features are NaN or infinite in rows 0: ", lambda editor, x: editor.kept(spoilt(x)[0])),
    ("image features are no numbers", lambda editor, x: editor.edit(np.array([["a"] * 6] * 3), x)),
    (r"text features are complex \(torch.complex128\): ", lambda editor, x: editor.edit(x, x.numpy() + 1j)),
    (r"image features are complex \(torch.complex64\): ", lambda editor, x: editor.kept(x[0], x[0].cfloat())),
]


def spoilt(rows: Tensor) -> Tensor:
    rows = rows.clone()
    rows[0, 1], rows[2, 3] = float("nan"), float("inf")
    return rows


@pytest.mark.parametrize(("said", "call"), BAD)
def test_the_editing_call_says_what_is_wrong(said: str, call: Callable[[Editor, Tensor], Any]) -> None:
    with pytest.raises(VlpipeError, match=f"^{said}"):
        call(editor_of(), rows(3))


def test_the_editing_call_takes_arrays() -> None:
    """Also those in float64 for a head in float32."""
    editor = editor_of()
    editor.head.float()
    images, texts = rows(3), rows(3, seed=2)
    fixed = np.flip(np.flip(images.numpy(), 0).copy(), 0)  # a view that runs backwards
    fixed.flags.writeable = False
    torch.testing.assert_close(editor.edit(fixed, texts.numpy()), editor.edit(images, texts))
    assert editor.kept(texts[0].numpy(), images[0].numpy()) == editor.kept(texts[0], images[0])
    assert editor.named(["a", "b", "c"], texts.numpy()).names == editor.named(["a", "b", "c"], texts).names


@pytest.mark.parametrize("kind", ["tevi", "smartclip"])
def test_rows_go_to_the_heads_device(kind: str) -> None:
    editor = editor_of(kind)
    editor.head.to("meta")
    assert editor.edit(rows(3), rows(3)).device.type == "meta"
    assert editor.edit(rows(3).numpy(), rows(3).numpy()).shape == (3, 6)
