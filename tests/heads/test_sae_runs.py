"""Autoencoder runs in folders: tables of concepts, runs that heads stand on, features of other encoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from vlpipe.foundation.errors import StaleError, UsageError, VlpipeError
from vlpipe.heads.commands import train_head
from vlpipe.heads.contracts import Batch, Shapes
from vlpipe.heads.folder import Run
from vlpipe.heads.kinds.sae import Sae
from vlpipe.heads.sweep import Request, run_sweep

Maker = Callable[..., Any]
SMALL = {"k": 2, "epochs": 2, "batch_size": 8}


def with_prompts(count: int, each: int = 1) -> list[dict[str, Any]]:
    """Captions, and five prompts that belong to no image."""
    captions = [
        {"text_id": f"t{n}.{k}", "text": f"text {n} {k}", "image_id": f"i{n}", "role": "caption"}
        for n in range(count)
        for k in range(each)
    ]
    return captions + [{"text_id": f"p{n}", "text": f"concept {n}", "role": "prompt"} for n in range(5)]


def test_a_run_reports_and_is_loaded_as_it_was(world: Maker) -> None:
    made = world()
    run = made.trained("sae", latents=12, **SMALL).run
    assert {"explained_variance", "l0", "dead_latents", "latents"} <= run.scalars.keys()
    rows = torch.from_numpy(made.arrays["enc:a", "image"]).float()
    for ours, theirs in zip(run.head().codes(rows), Run.read(run.folder).head().codes(rows), strict=True):
        assert torch.equal(ours, theirs)
    assert made.trained("sae", latents=12, **SMALL).action == "skipped"


def images(rows: torch.Tensor) -> Batch:
    return Batch([""] * len(rows), {"image": rows})


def test_dead_is_by_default_what_an_epochs_images_did_not_wake() -> None:
    """Of 7 images in batches of 5 and 2, nine rounds, the last seven decide, whatever the batch's size says."""
    config = Sae.Config(latents=24, k=1, epochs=9, batch_size=5, aux_weight=0.0)
    torch.manual_seed(0)
    head, again = (Sae(config, Shapes({"image": (8,)})) for _ in range(2))
    rows = torch.randn(7, 8)
    assert len(head.dead()) == 0  # the training rows are not known yet
    head.configure(18)
    head.prepare(lambda: iter([images(rows[:4]), images(rows[4:])]))
    history: list[set[int]] = []  # latents that fired, by image, counted in the order they were seen
    for _ in range(9):
        for part in (rows[:5], rows[5:]):
            expected = set(range(24)).difference(*history[-7:]) if len(history) >= 7 else set()
            assert set(head.dead().tolist()) == expected
            values, indices = head.codes(part)
            history += [set(who[value > 0].tolist()) for value, who in zip(values, indices, strict=True)]
            assert head.update(images(part))["dead"] == len(expected)
    again.load_state_dict(head.state_dict())
    assert torch.equal(again.dead(), head.dead())
    assert head.report()["dead_latents"] == len(head.dead()) >= 10


@pytest.mark.parametrize("size", [8, 8000])
def test_an_epoch_shows_each_training_image_once_whatever_the_batch(world: Maker, size: int) -> None:
    """20 training images; latents that fired for none of the last 20 are dead, alone and swept."""
    settings = {"latents": 48, "k": 1, "epochs": 3, "batch_size": size}
    made = world()
    run = made.trained("sae", **settings).run
    head = run.head()
    assert int(head.get_buffer("epoch_images")) == 20
    idle = head.get_buffer("idle")
    assert run.scalars["dead_latents"] == int((idle >= 20).sum()) > 0
    assert torch.equal(head.dead(), (idle >= 20).nonzero()[:, 0])
    opener = made.plan("sae", **settings).opener
    request = Request("sae", opener, made.root / "swept", encoder="enc:a", together=2)
    swept = list(run_sweep(request, settings, {"seed": [0, 1]}))
    outcomes = [one.outcome for one in swept if one.outcome is not None]
    assert outcomes[0].run.scalars == run.scalars
    assert [int(one.run.head().get_buffer("epoch_images")) for one in outcomes] == [20, 20]


def test_a_resumed_autoencoder_knows_how_many_images_an_epoch_has(
    world: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"latents": 48, "k": 1, "epochs": 3, "batch_size": 8}
    made = world()
    straight = made.trained("sae", **settings).run
    made.runs.rename(made.root / "straight")
    original, steps = Sae.update, iter(range(5))

    def update(self: Sae, batch: Batch) -> dict[str, float]:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return original(self, batch)

    monkeypatch.setattr(Sae, "update", update)
    with pytest.raises(KeyboardInterrupt):
        made.trained("sae", **settings)
    monkeypatch.undo()
    outcome = made.trained("sae", **settings)
    assert outcome.action == "resumed"
    assert int(outcome.run.head().get_buffer("epoch_images")) == 20
    assert outcome.run.scalars == straight.scalars


def test_concepts_come_from_prompts_without_an_image_and_name_the_latents(world: Maker) -> None:
    made = world(texts=with_prompts(40))
    run = made.trained("cg_sae", **SMALL).run
    head = run.head()
    assert head.names == [f"concept {n}" for n in range(5)]
    rows = made.arrays["enc:a", "text"][-5:]
    expected = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(head.autoencoder.W_dec.detach().numpy(), expected, atol=1e-6)


def test_a_manifest_without_concepts_is_refused(world: Maker) -> None:
    with pytest.raises(VlpipeError, match="role 'concept' is made of texts with the role 'prompt'"):
        world().plan("cg_sae", **SMALL).joined.shapes()


def test_other_heads_read_reconstructions(world: Maker) -> None:
    made = world()
    run = made.trained("sae", latents=12, **SMALL).run
    rows = made.plan("ridge", sources={"image": f"enc:a::{run.id}"}).joined.sources["image"]
    raw = torch.from_numpy(made.arrays["enc:a", "image"]).float()
    head = run.head()
    torch.testing.assert_close(rows.take(np.arange(5)), head.autoencoder(raw[:5]))


def test_a_head_that_stands_on_a_run_reads_raw_rows_and_gets_its_head(world: Maker) -> None:
    made = world()
    run = made.trained("sae", latents=12, **SMALL).run
    plan = made.plan("tevi", sources={"image": f"enc:a::{run.id}"})
    raw = torch.from_numpy(made.arrays["enc:a", "image"]).float()
    torch.testing.assert_close(plan.joined.sources["image"].take(np.arange(5)), raw[:5])
    shapes = plan.joined.shapes()
    for ours, theirs in zip(shapes.heads["image"].codes(raw), run.head().codes(raw), strict=True):
        assert torch.equal(ours, theirs)
    assert plan.provenance()["image"]["through"] == [f"{run.id}@{run.status['weights']}"]
    assert plan.run_id() != made.plan("tevi", sources={"image": f"enc:a::{_other(made).id}"}).run_id()


def test_standing_on_nothing_is_refused(world: Maker) -> None:
    with pytest.raises(UsageError, match="this head stands on a finished run"):
        world().plan("tevi")


def test_an_autoencoder_of_another_feature_set_is_stale(world: Maker) -> None:
    made = world()
    run = made.trained("sae", latents=12, **SMALL).run
    made.store("enc:b", "image", made.arrays["enc:a", "image"], weights="other")
    with pytest.raises(StaleError, match="was trained on other 'image' features") as raised:
        made.plan("tevi", sources={"image": f"enc:b::{run.id}"})
    assert raised.value.exit_code == 4


def test_a_run_that_stands_on_one_that_was_trained_again_is_stale(world: Maker) -> None:
    made = world()
    under = made.trained("sae", latents=12, **SMALL).run
    upper = made.trained("tevi", sources={"image": f"enc:a::{under.id}"}, epochs=1, batch_size=8).run
    upper.head()
    status = under.folder / "status.json"
    status.write_text(status.read_text().replace(under.status["weights"], "0" * 64))
    with pytest.raises(StaleError, match="has been trained again since"):
        Run.read(upper.folder).head()


def _other(made: Any) -> Run:
    found: Run = made.trained("sae", latents=12, seed=1, **SMALL).run
    return found


def test_an_autoencoder_worse_than_the_mean_is_warned_of(world: Maker) -> None:
    made = world()
    paths = ["--manifest", str(made.manifest.folder), "--cache", str(made.cache), "--runs", str(made.runs)]

    def told(*settings: str) -> str:
        given = [part for setting in ("latents=12", *settings) for part in ("--set", setting)]
        done = CliRunner().invoke(train_head, ["sae", "--encoder", "enc:a", *paths, *given])
        assert done.exit_code == 0, done.exception
        return done.stderr

    assert "is below 0, worse than the mean of all images" in told("k=12", "epochs=1", 'start="zero"', "lr=10.0")
    assert "warning" not in told("k=2", "epochs=300", "batch_size=8", "lr=0.01")
