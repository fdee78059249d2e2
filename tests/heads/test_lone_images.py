"""Heads whose loss compares the images of a batch: one image alone says nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.heads import loop
from vlpipe.heads.commands import train_head
from vlpipe.heads.contracts import SHELF
from vlpipe.heads.kinds.smartclip import Smartclip
from vlpipe.heads.sweep import Request, run_sweep

World = Any
Maker = Callable[..., World]
COMPARING = ["jam", "projection", "smartclip", "tevi", "text_adapter"]
ALONE = ["cca", "cg_sae", "identity", "ridge", "sae", "tpc"]  # each image's loss is its own, or there is none
SMALL: dict[str, Any] = {"epochs": 1}


def command(made: World, *arguments: str) -> Result:
    paths = ["--manifest", str(made.manifest.folder), "--cache", str(made.cache), "--runs", str(made.runs)]
    return CliRunner().invoke(train_head, [*arguments, "--encoder", "enc:a", *paths])


def with_negatives(images: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for n, k in product(range(images), range(2)):
        text = {"text_id": f"t{n}.{k}", "text": f"caption {n} {k}", "image_id": f"i{n}", "role": "caption"}
        wrong = {"text_id": f"n{n}.{k}", "text": f"wrong {n} {k}", "image_id": f"i{n}", "role": "hard_negative"}
        rows += [text, wrong | {"source_text_id": f"t{n}.{k}"}]
    return rows


def test_every_head_on_the_shelf_is_of_one_kind_or_the_other() -> None:
    assert sorted(COMPARING + ALONE) == sorted(SHELF.names())


@pytest.mark.parametrize("kind", COMPARING)
def test_a_batch_size_of_one_is_refused_where_images_are_compared(world: Maker, kind: str) -> None:
    made = world()
    result = command(made, kind, "--set", "batch_size=1")
    assert isinstance(result.exception, UsageError)
    assert "setting 'batch_size' = 1: Input should be greater than or equal to 2" in str(result.exception)
    assert not made.runs.exists()
    assert SHELF.load(kind).Config(batch_size=2).batch_size == 2


@pytest.mark.parametrize("kind", ALONE)
def test_other_heads_take_images_one_by_one(kind: str) -> None:
    assert SHELF.load(kind).Config(batch_size=1).batch_size == 1


def test_tpc_learns_of_one_image(world: Maker) -> None:
    run = world().trained("tpc", batch_size=1, epochs=3, lr=1e-2).run
    lines = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    assert lines[2]["loss"] < lines[0]["loss"]


@pytest.mark.parametrize("kind", COMPARING)
def test_one_training_image_is_refused_where_images_are_compared(world: Maker, kind: str) -> None:
    made = world(texts=with_negatives(12), images=12, splits=("train", *["val", "test"] * 5, "val"))
    source = {}
    if kind == "tevi":
        source = {"image": f"enc:a::{made.trained('sae', k=2, latents=12, epochs=1).run.id}"}
    before = sorted(made.runs.glob("*"))
    with pytest.raises(VlpipeError, match=r"1 training image, .* 1 in 'train', .*expected 2 or more in 'train'"):
        made.trained(kind, sources=source, **SMALL)
    assert sorted(made.runs.glob("*")) == before
    assert made.trained("tpc", **SMALL).action == "trained"


def test_a_last_batch_of_one_image_does_not_count_in_an_epochs_means(
    world: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five training images in batches of two: the fifth's loss would be 0."""
    made = world(images=10, splits=("train", "val"))
    seen: list[float] = []
    original = Smartclip.update

    def update(self: Smartclip, batch: Any) -> dict[str, float]:
        found = original(self, batch)
        seen.append(found["loss"])
        return found

    monkeypatch.setattr(Smartclip, "update", update)
    run = made.trained("smartclip", batch_size=2, epochs=1).run
    assert len(seen) == 3
    assert seen[2] == 0
    assert run.scalars["loss"] == pytest.approx((seen[0] + seen[1]) / 2)


def test_the_same_holds_for_runs_that_train_as_one(world: Maker) -> None:
    made = world(images=10, splits=("train", "val"), texts=with_negatives(10))
    settings = {"hidden": [8], "latent": 4, "batch_size": 2, "epochs": 2, "objective": "con", "check_every": 9}
    settings |= {"reconstruction": False}
    found = []
    for name, together in (("alone", 1), ("together", 2)):
        opener = made.plan("jam", **settings).opener
        request = Request("jam", opener, made.root / name, encoder="enc:a", together=together)
        done = list(run_sweep(request, settings, {"seed": [0, 1]}))
        found.append([one.outcome.run.scalars["loss"] for one in done if one.outcome])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


def test_means_leave_out_batches_of_too_few() -> None:
    means = loop.Means(least=2)
    means.add({"loss": 3.0, "lr": 0.1}, 3)
    means.add({"loss": 0.0, "lr": 0.2}, 1)
    means.add({"loss": 1.0, "lr": 0.3}, 2)
    assert means.found() == {"loss": pytest.approx(11 / 5), "lr": 0.3}
    every = loop.Means(least=1)
    every.add({"loss": 3.0}, 3)
    every.add({"loss": 1.0}, 1)
    assert every.found() == {"loss": 2.5}


def test_images_without_a_caption_are_told_as_such(world: Maker) -> None:
    texts = [row for row in with_negatives(12) if int(row["image_id"][1:]) % 3 and row["role"] == "caption"]
    made = world(images=12, texts=texts, splits=("train", "train", "val"))
    for _ in ("trained", "skipped"):
        result = command(made, "smartclip", "--set", "epochs=1")
        assert result.exception is None
        assert (
            "4 images left out (image: 12 usable, 0 failed, 0 absent; text: 16 usable, 0 failed, 0 absent; "
            "4 images without a text of role 'caption')"
        ) in result.stderr
    assert "left out" not in command(made, "sae", "--set", "epochs=1", "--set", "k=2").stderr


def test_a_manifest_without_any_caption_is_told_as_such(world: Maker) -> None:
    texts = [row | {"role": "prompt"} for row in with_negatives(12)]
    said = str(command(world(images=12, texts=texts), "smartclip").exception)
    assert "text: 48 usable, 0 failed, 0 absent; 12 images without a text of role 'caption'" in said
