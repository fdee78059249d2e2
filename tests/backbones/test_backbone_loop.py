from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vlpipe.backbones.data import Gather, Pairs
from vlpipe.backbones.loop import LOG, Loop
from vlpipe.backbones.objectives.clip import Clip, ClipConfig
from vlpipe.backbones.settings import LoopConfig
from vlpipe.backbones.state import STATE, WEIGHTS, restore
from vlpipe.foundation.errors import StaleError, VlpipeError

SETTINGS: dict[str, Any] = {
    "steps": 12,
    "batch_size": 8,
    "text_warmup_steps": 6,
    "text_warmup_batch": 4,
    "text_frozen": 0.5,
    "save_every": 3,
    "lr": 0.01,
}


class Tower(nn.Module):
    """A linear map behind a dropout, so that random layers are part of the test."""

    def __init__(self, name: str, width: int) -> None:
        super().__init__()
        self.name = name
        self.drop = nn.Dropout(0.2)
        self.map = nn.Linear(width, 4)

    def forward(self, tensors: dict[str, Tensor]) -> Tensor:
        mapped: Tensor = self.map(self.drop(tensors[self.name]))
        return mapped


def stack(name: str, rows: Tensor) -> Gather:
    """Rows in memory under the name that a tower reads."""
    return lambda positions: {name: rows[torch.from_numpy(positions)]}


def pairs(rows: int = 40, captions: int = 2, seed: int = 0) -> Pairs:
    """Images and texts that show the same hidden class."""
    rng = np.random.default_rng(seed)
    classes = np.eye(5, dtype=np.float32)[rng.integers(5, size=rows)]
    noise = rng.normal(size=(rows, 6)).astype(np.float32)
    images = torch.tensor(np.hstack([classes, 0.1 * noise]))
    texts = torch.tensor(np.repeat(classes, captions, axis=0) + 0.1 * rng.random((rows * captions, 5), np.float32))
    return Pairs(stack("x", images), stack("y", texts), np.arange(rows + 1) * captions)


def loop(run: str = "r", **changed: Any) -> Loop:
    torch.manual_seed(0)
    towers = {"image": Tower("x", 11), "text": Tower("y", 5)}
    return Loop(LoopConfig(**{**SETTINGS, **changed}), towers, Clip(ClipConfig()), run)


def weights(folder: Path, name: str = WEIGHTS) -> dict[str, Tensor]:
    found: dict[str, Tensor] = load_file(folder / name)
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_loss_goes_down(tmp_path: Path) -> None:
    trained = loop(steps=150)
    before = trained.validate(pairs(seed=1))
    result = trained.train(pairs(), pairs(seed=1), tmp_path)
    assert result["validation_loss"] < 0.8 * before
    assert trained.validate(pairs(seed=1)) == pytest.approx(result["validation_loss"])


class InterruptedTrainingError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("stop", [1, 5, 6, 8, 13, 17])
def test_an_interrupted_run_equals_an_uninterrupted_one(
    tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = loop().train(pairs(), pairs(seed=1), tmp_path / "straight")
    steps = 0
    original = Loop._descend

    def counted(self: Loop, *args: Any) -> float:
        nonlocal steps
        if steps == stop:
            raise InterruptedTrainingError
        steps += 1
        return original(self, *args)

    monkeypatch.setattr(Loop, "_descend", counted)
    with pytest.raises(InterruptedTrainingError):
        loop().train(pairs(), pairs(seed=1), tmp_path / "twice")
    monkeypatch.setattr(Loop, "_descend", original)
    resumed = loop().train(pairs(), pairs(seed=1), tmp_path / "twice")
    assert resumed == straight
    for name in (WEIGHTS, STATE):
        assert same(weights(tmp_path / "straight", name), weights(tmp_path / "twice", name))
    assert (tmp_path / "straight" / LOG).read_text() == (tmp_path / "twice" / LOG).read_text()


@pytest.mark.filterwarnings("ignore:.*which is a no-op")  # weights into a meta parameter
def test_moments_go_where_their_parameters_are(tmp_path: Path) -> None:
    here = loop()
    here.train(pairs(), None, tmp_path)
    towers = {side: tower.to("meta") for side, tower in here.towers.items()}
    there = Loop(here.config, towers, here.objective.to("meta"), "r")  # type: ignore[attr-defined]
    restore(tmp_path, there.parts, there.optimizer, "r")
    assert len(there.optimizer.state) == 5
    for state in there.optimizer.state.values():
        found = {name: tensor.device.type for name, tensor in state.items()}
        assert found == {"step": "cpu", "exp_avg": "meta", "exp_avg_sq": "meta"}


def test_a_finished_run_does_nothing_again(tmp_path: Path) -> None:
    first = loop().train(pairs(), None, tmp_path)
    held = {name: (tmp_path / name).read_bytes() for name in (WEIGHTS, STATE, LOG)}
    assert loop().train(pairs(), None, tmp_path) == first
    assert {name: (tmp_path / name).read_bytes() for name in held} == held


def test_a_log_line_without_its_state_is_dropped(tmp_path: Path) -> None:
    loop().train(pairs(), None, tmp_path / "straight")
    (tmp_path / "twice").mkdir()
    (tmp_path / "twice" / LOG).write_text(json.dumps({"step": 3, "loss": 9.0}) + "\n")
    loop().train(pairs(), None, tmp_path / "twice")
    assert (tmp_path / "twice" / LOG).read_text() == (tmp_path / "straight" / LOG).read_text()


def test_phases_train_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = {name: t.clone() for name, t in loop().parts["text"].state_dict().items()}
    image = {name: t.clone() for name, t in loop().parts["image"].state_dict().items()}
    after: dict[int, dict[str, dict[str, Tensor]]] = {}
    trained = loop(save_every=1)
    original = trained._descend

    def watched(*args: Any) -> float:
        value = original(*args)
        after[len(after) + 1] = {
            part: {name: t.clone() for name, t in module.state_dict().items()}
            for part, module in trained.parts.items()
        }
        return value

    monkeypatch.setattr(trained, "_descend", watched)
    trained.train(pairs(), None, tmp_path)
    assert not same(after[6]["text"], start)  # six steps of warm-up
    assert same(after[6]["image"], image)
    assert after[6]["objective"]["log_scale"].item() == pytest.approx(math.log(1 / 0.07))
    assert same(after[12]["text"], after[6]["text"])  # then half of twelve with the text at rest
    assert not same(after[12]["image"], after[6]["image"])
    assert not same(after[12]["objective"], after[6]["objective"])
    assert not same(after[18]["text"], after[12]["text"])
    phases = [json.loads(line)["phase"] for line in (tmp_path / LOG).read_text().splitlines()]
    assert phases == ["text warm-up"] * 6 + ["text frozen"] * 6 + ["both"] * 6


def test_the_weights_are_those_of_the_lowest_validation_loss(tmp_path: Path) -> None:
    trained = loop(lr=3.0, save_every=1, text_warmup_steps=0, text_frozen=0.0)  # diverges soon
    trained.train(pairs(), pairs(seed=1), tmp_path)
    values = [json.loads(line)["validation_loss"] for line in (tmp_path / LOG).read_text().splitlines()]
    assert min(values) < values[-1]
    kept = weights(tmp_path)
    for part, module in trained.parts.items():
        module.load_state_dict({name: kept[f"{part}.{name}"] for name in module.state_dict()})
    assert trained.validate(pairs(seed=1)) == pytest.approx(min(values))


def test_the_seed_decides(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        loop(seed=seed).train(pairs(), None, tmp_path / name)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    loop().train(pairs(), None, tmp_path)
    with pytest.raises(StaleError, match="other settings"):
        loop(run="other").train(pairs(), None, tmp_path)
    (tmp_path / STATE).write_bytes(b"cut")
    with pytest.raises(VlpipeError, match="cannot be read"):
        loop().train(pairs(), None, tmp_path)


def test_what_cannot_be_trained_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VlpipeError, match="7 images cannot fill a batch of 8"):
        loop().train(pairs(rows=7), None, tmp_path)
    with pytest.raises(VlpipeError, match="0 images cannot fill a batch of 4"):
        loop().train(pairs(captions=1), None, tmp_path)


def test_only_matrices_decay() -> None:
    groups = loop().optimizer.param_groups
    assert len(groups) == 4  # the text tower's own two
    for group in groups:
        decays = {p.ndim == 2 for p in group["params"]}
        assert decays == {group["weight_decay"] == 0.1}
        assert group["weight_decay"] in (0.0, 0.1)


def test_the_text_tower_may_have_a_rate_of_its_own(tmp_path: Path) -> None:
    moved = {}
    for rate in (None, 0.001, 0.0):
        trained = loop(text_lr=rate, weight_decay=0.0, steps=1, text_warmup_steps=0, text_frozen=0.0, warmup=0.0)
        before = {part: module.map.weight.clone() for part, module in trained.towers.items()}
        trained.train(pairs(), None, tmp_path / str(rate))
        moved[rate] = [
            float((trained.towers[part].map.weight - before[part]).detach().abs().max()) for part in before
        ]
    assert moved[None] == pytest.approx([0.01, 0.01], rel=0.01)  # Adam's first step is the rate
    assert moved[0.001] == pytest.approx([0.01, 0.001], rel=0.01)
    assert moved[0.0] == pytest.approx([0.01, 0.0], rel=0.01)


def test_what_is_frozen_at_the_start_stays_so(tmp_path: Path) -> None:
    trained = loop()
    trained.objective.log_scale.requires_grad_(False)
    again = Loop(trained.config, trained.towers, trained.objective, "r")
    again.train(pairs(), None, tmp_path)
    assert again.objective.log_scale.item() == pytest.approx(math.log(1 / 0.07))


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    found = replace(pairs(), images=stack("x", torch.full((40, 11), torch.nan)))
    with pytest.raises(VlpipeError, match="the loss is nan; lower lr"):
        loop(text_warmup_steps=0).train(found, None, tmp_path)
