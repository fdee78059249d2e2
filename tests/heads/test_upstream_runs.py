from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vlpipe.foundation.errors import StaleError, UnknownNameError, VlpipeError
from vlpipe.foundation.files import file_digest
from vlpipe.heads.checkpoint import load_tensors, save_tensors
from vlpipe.heads.folder import STATUS, WEIGHTS
from vlpipe.heads.runs import Run, open_joined

World = Any
Maker = Callable[..., World]
FAST = {"epochs": 3, "batch_size": 8, "lr": 1e-2}


def test_runs_stand_on_runs(world: Maker) -> None:
    """ridge maps images of another width, tpc learns on what comes out, a second tpc on the first."""
    made = world(image_width=9)
    with pytest.raises(VlpipeError, match=r"9.*6"):
        made.trained("tpc", **FAST)
    ridge = made.trained("ridge").run
    source = f"enc:a#pooled::{ridge.id}"
    first = made.trained("tpc", sources={"image": source, "text": source}, **FAST).run
    assert first.sources["image"] == source
    data = open_joined(first)
    batch = data.image_batch(np.arange(4))
    expected = ridge.head().images(open_joined(ridge).image_batch(np.arange(4))).x["image"]
    torch.testing.assert_close(batch.x["image"], expected)
    chained = dict.fromkeys(("image", "text"), f"{source}::{first.id}")
    second = made.trained("tpc", sources=chained, **FAST).run
    texts = open_joined(second).text_batch(np.arange(5), "text").x["text"]
    own = first.head().texts(data.text_batch(np.arange(5), "text")).x["text"]
    torch.testing.assert_close(texts, own)


def test_a_run_on_other_rows_than_it_was_trained_on_is_stale(world: Maker) -> None:
    made = world(image_width=9)
    ridge = made.trained("ridge").run
    made.store("enc:b", "image", np.ones((40, 9)), weights="w1")
    with pytest.raises(StaleError, match="weights: cached 'w1', asked 'w0'"):
        made.plan("tpc", sources={"image": f"enc:b::{ridge.id}"})
    with pytest.raises(StaleError, match="through"):
        made.plan("tpc", sources={"image": f"enc:a::{ridge.id}::{ridge.id}"})
    with pytest.raises(UnknownNameError, match="no run"):
        made.plan("tpc", sources={"image": "enc:a::ridge-0"})


def retrained(run: Run) -> None:
    """Another machine's weights under the same id."""
    path = run.folder / WEIGHTS
    tensors = load_tensors(path, "")
    save_tensors(path, tensors | {"weight": tensors["weight"] * 2})
    status = run.status | {"weights": file_digest(path)}
    (run.folder / STATUS).write_text(json.dumps(status))


def test_other_weights_under_the_same_id_are_another_source(world: Maker) -> None:
    made = world(image_width=9)
    ridge = made.trained("ridge").run
    sources = {"image": f"enc:a::{ridge.id}"}
    run = made.trained("tpc", sources=sources, **FAST).run
    chain = {"image": f"enc:a::{ridge.id}::{run.id}"}
    assert made.plan("tpc", sources=chain)
    retrained(ridge)
    assert made.plan("tpc", sources=sources, **FAST).run_id() != run.id
    with pytest.raises(StaleError, match=f"through: cached '{ridge.id}@"):
        open_joined(run)
    with pytest.raises(StaleError, match="through"):
        made.plan("tpc", sources=chain)


def test_a_run_does_not_pass_rows_on_whose_pictures_were_replaced(world: Maker) -> None:
    made = world(image_width=9)
    ridge = made.trained("ridge").run
    sources = {"image": f"enc:a::{ridge.id}"}
    run = made.trained("tpc", sources=sources, **FAST).run
    made.store("enc:a", "image", made.arrays["enc:a", "image"] + 1, content=1, again=True)
    named = made.manifest.folder
    for again in (
        lambda: made.plan("tpc", sources=sources),
        lambda: open_joined(run),
        lambda: open_joined(run, named),
    ):
        with pytest.raises(StaleError, match=f"pictures of .* encoded anew .* run '{ridge.id}'"):
            again()


def test_a_run_that_lost_the_one_it_stands_on_says_so(world: Maker) -> None:
    made = world()
    ridge = made.trained("ridge", strength=1.0).run
    run = made.trained("identity", sources={"image": f"enc:a::{ridge.id}"}).run
    shutil.rmtree(ridge.folder)
    with pytest.raises(VlpipeError, match=f"run '{run.id}' stands on run '{ridge.id}', which is not in"):
        open_joined(run)
