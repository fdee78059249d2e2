"""Runs of JAM and the projections: the negatives they read, early stopping, resuming, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vlpipe.cache_store.layout import Status
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.heads.contracts import Batch
from vlpipe.heads.folder import WEIGHTS
from vlpipe.heads.kinds.jam import Jam

World = Any
Maker = Callable[..., World]
SMALL = {"hidden": [8], "latent": 4, "batch_size": 8, "epochs": 4, "check_every": 2, "lr": 1e-2}


def texts(images: int, captions: int = 2, negatives: int = 1, without: int = 0) -> list[dict[str, Any]]:
    """Captions `t3.1` with negatives `t3.1#0`; the first `without` images have no negatives."""
    rows: list[dict[str, Any]] = []
    for n in range(images):
        for k in range(captions):
            own = {"text_id": f"t{n}.{k}", "text": f"caption {n} {k}", "image_id": f"i{n}", "role": "caption"}
            rows.append(own)
            for j in range(negatives if n >= without else 0):
                negative = {"text_id": f"t{n}.{k}#{j}", "text": f"negative {n} {k} {j}", "role": "hard_negative"}
                rows.append(negative | {"image_id": f"i{n}", "source_text_id": f"t{n}.{k}"})
    return rows


def test_a_step_reads_negatives_of_its_caption_and_no_others(world: Maker) -> None:
    made = world(images=12, texts=texts(12, captions=3, negatives=3, without=2), splits=("train",))
    joined = made.plan("jam", negatives=2, **SMALL).joined
    seen = set()
    for epoch in range(20):
        batch = joined.training_batch(joined.images("train"), 0, epoch)
        assert batch.x["negative"].shape == (12, 2, 6)
        assert batch.mask["negative"].sum(1).tolist() == [0, 0] + [2] * 10
        for caption, negatives in zip(batch.columns["text"], batch.columns["negative"], strict=True):
            drawn = [text for text in negatives if text]
            assert len(set(drawn)) == len(drawn)
            assert all(text.startswith(caption.replace("caption", "negative") + " ") for text in drawn)
            seen.update(drawn)
    assert len(seen) == 90
    assert joined.training_batch(np.array([3]), 0, 7).columns["negative"][0] == batches_of(joined, 7)[3]


def batches_of(joined: Any, epoch: int) -> list[list[str]]:
    found: list[list[str]] = joined.training_batch(joined.images("train"), 0, epoch).columns["negative"]
    return found


def test_negatives_that_failed_are_masked(world: Maker) -> None:
    rows = texts(6, captions=1)
    made = world(images=6, texts=rows, splits=("train",))
    status = [Status.OK] * len(rows)
    status[3] = Status.FAILED  # t1.0#0
    made.store("enc:f", "text", np.ones((len(rows), 6)), status=status)
    joined = made.plan("jam", sources={"text": "enc:f", "negative": "enc:f"}, **SMALL).joined
    batch = joined.training_batch(joined.images("train"), 0, 0)
    assert batch.mask["negative"].tolist() == [True, False, True, True, True, True]
    assert batch.x["negative"][1].abs().max() == 0
    assert len(batch.ids) == 6  # the image stays


def test_validation_has_every_caption_and_negative_of_an_image(world: Maker) -> None:
    joined = world(texts=texts(40, without=1)).plan("jam", **SMALL).joined
    batch = joined.whole_batch(joined.images("val"))
    assert batch.mask["text"].sum() == 2 * len(batch.ids)
    assert batch.mask["negative"].sum() == 2 * len(batch.ids)


def test_the_best_check_is_kept_and_patience_ends_training(world: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(texts=texts(40))
    values = iter([0.2, 0.5, 0.5, 0.4, 0.9])
    kept: list[Tensor] = []

    def recall(self: Jam, batch: Batch) -> float:
        kept.append(self.encoders["image"][0].weight.detach().clone())
        assert (len(batch.ids), self.training) == (10, False)
        return next(values)

    monkeypatch.setattr(Jam, "recall", recall)
    run = made.trained("jam", **{**SMALL, "epochs": 50, "patience": 2}).run
    lines = (run.folder / "log.jsonl").read_text().splitlines()
    assert len(lines) == 8  # checks after 2, 4, 6 and 8 epochs, the last two without a better one
    assert torch.equal(run.head().encoders["image"][0].weight, kept[1])
    assert (run.scalars["best_epoch"], run.scalars["validation_i2t_recall@1"]) == (4, 0.5)


def test_without_validation_images_the_last_weights_stay(world: Maker) -> None:
    made = world(texts=texts(40), splits=("train",))
    run = made.trained("projection", batch_size=8, epochs=3, latent=4).run
    assert "best_epoch" not in run.scalars
    assert (run.folder / "log.jsonl").read_text().count("\n") == 3


@pytest.mark.parametrize("dies", [3, 9])
def test_resumed_equals_uninterrupted(world: Maker, monkeypatch: pytest.MonkeyPatch, dies: int) -> None:
    made = world(texts=texts(40, without=3))
    settings = {**SMALL, "schedule": "linear"}
    original = Jam.update

    def update(self: Jam, batch: Batch) -> dict[str, float]:
        if self.steps == dies:
            raise KeyError
        return original(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Jam, "update", update)
        with pytest.raises(KeyError):
            made.trained("jam", **settings)
    resumed = made.trained("jam", **settings)
    assert resumed.action == "resumed"
    made.runs.rename(made.root / "first")
    straight = made.trained("jam", **settings).run
    assert (made.root / "first" / straight.id / WEIGHTS).read_bytes() == (straight.folder / WEIGHTS).read_bytes()


@pytest.mark.parametrize("objective", ["negcon", "spread"])
@pytest.mark.parametrize("kind", ["jam", "projection"])
def test_no_negatives_at_all_are_refused_by_objectives_that_need_them(
    world: Maker, kind: str, objective: str
) -> None:
    made = world()
    with pytest.raises(
        VlpipeError, match=r"none of 20 training images .*hard_negative.*vlpipe manifest negatives"
    ):
        made.trained(kind, objective=objective)
    assert not made.runs.exists()


def test_con_needs_no_negatives(world: Maker) -> None:
    run = world().trained("projection", objective="con", epochs=2, batch_size=8, latent=4).run
    assert run.scalars["best_epoch"] == 2


def test_some_images_without_negatives_still_train(world: Maker) -> None:
    run = world(texts=texts(40, without=30)).trained("projection", epochs=2, batch_size=8, latent=4).run
    assert run.status["rows"]["images_left_out"] == 0


@pytest.mark.parametrize("settings", [{"alpha_grid": [0.5, 1.5]}, {"alpha": -0.1}, {"objective": "clip"}])
def test_settings_out_of_range_are_refused(world: Maker, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        world().plan("projection", **settings)


def told_apart(made: World, objective: str, sign: float) -> float:
    """Share of captions that score above their negative, which lies on one side of them whatever the image."""
    ids = made.manifest.table("text", ["text_id"])["text_id"].to_pylist()
    owner = np.array([int(name.split(".")[0][1:]) for name in ids])
    negative = np.array(["#" in name for name in ids])
    rng = np.random.default_rng(0)
    captions = made.arrays["enc:a", "image"][owner] + 0.02 * rng.normal(size=(len(ids), 6))
    shown = np.where(negative, sign, -sign)[:, None] + 0.1 * rng.normal(size=(len(ids), 1))
    captions = np.concatenate([captions, shown], axis=1)
    spec = f"enc:{'above' if sign > 0 else 'below'}"
    made.store(spec, "text", captions, weights=spec)
    settings = {"objective": objective, "epochs": 30, "batch_size": 20, "latent": 8, "lr": 3e-2}
    head = made.trained("projection", sources={"text": spec, "negative": spec}, **settings).run.head()
    images, rows_ = (torch.from_numpy(x).float() for x in (made.arrays["enc:a", "image"], captions))
    v = head.images(Batch([], {"image": images[owner]}))
    own = head.score_pairs(v, head.texts(Batch([], {"text": rows_}))).detach().numpy()
    return float(np.mean(own[~negative] > own[negative]))


def test_spread_learns_to_tell_negatives_apart_better_than_con_does(world: Maker) -> None:
    made = world(images=60, texts=texts(60), splits=("train", "train", "val"))
    assert min(told_apart(made, "spread", sign) for sign in (-0.5, 0.5)) > 0.95
    assert min(told_apart(made, "con", sign) for sign in (-0.5, 0.5)) < 0.9
