from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from torch import nn

from vlpipe.backbones import train as training
from vlpipe.backbones.commands import train_backbone
from vlpipe.backbones.live import Places
from vlpipe.backbones.loop import Loop
from vlpipe.backbones.objectives.clip import Clip, ClipConfig
from vlpipe.backbones.settings import LoopConfig
from vlpipe.backbones.train import train
from vlpipe.extract.encoders.bundled import Bundled, BundledConfig
from vlpipe.foundation.config import read_toml, resolve
from vlpipe.foundation.errors import StaleError, UnknownNameError, UsageError, VlpipeError
from vlpipe.heads.sources import parse_source
from vlpipe.manifests.build import build
from vlpipe.manifests.writer import write_manifest

SPEC = "bundled:mad-clip"
TINY: dict[str, Any] = {
    "steps": 3,
    "batch_size": 4,
    "text_warmup_steps": 2,
    "text_warmup_batch": 4,
    "save_every": 2,
    "encoder": {"init_seed": 0, "device": "cpu"},
}


@pytest.fixture(scope="module")
def mad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mad")
    build("mad", None, folder, {"digits": 6, "images_per_digit": 2})
    return folder


def config(**changed: Any) -> LoopConfig:
    return resolve(LoopConfig, TINY, changed)


def test_what_it_writes_is_what_the_encoder_loads(mad: Path, tmp_path: Path) -> None:
    result = train("clip", mad, SPEC, tmp_path / "run", config())
    trained = Bundled(f"mad-clip@{result['weights']}", BundledConfig())
    start = Bundled("mad-clip", BundledConfig(init_seed=0))
    assert trained.identity("image")["weights"] != start.identity("image")["weights"]
    assert 1 < trained.constants["logit_scale"] < 100
    assert {"validation_loss", "lowest_validation_loss", "step"} <= result.keys()
    kept = resolve(LoopConfig, read_toml(tmp_path / "run" / "config.toml"))
    assert kept == config()


def test_the_same_command_again_continues_and_another_is_refused(mad: Path, tmp_path: Path) -> None:
    first = train("clip", mad, SPEC, tmp_path, config())
    assert train("clip", mad, SPEC, tmp_path, config()) == first
    for changed in ({"lr": 0.5}, {"encoder": {"init_seed": 1}}, {"objective": {"initial_temperature": 0.1}}):
        with pytest.raises(StaleError, match="other settings"):
            train("clip", mad, SPEC, tmp_path, config(**changed))


def test_the_device_is_no_part_of_what_a_run_is(mad: Path, tmp_path: Path) -> None:
    anywhere = config(encoder={"init_seed": 0})
    first = train("clip", mad, SPEC, tmp_path, config())
    assert train("clip", mad, SPEC, tmp_path, anywhere) == first
    unchanged = anywhere.model_dump(exclude={"threads"})
    assert training._deciding(config()) == training._deciding(anywhere) == unchanged


class Far:
    """An encoder whose towers are on another device."""

    def sides(self) -> tuple[str, str]:
        return "image", "text"

    def tower(self, side: str) -> nn.Module:
        return nn.Linear(2, 2, device="meta")


def test_the_objective_learns_where_the_towers_do() -> None:
    encoder: Any = Far()
    made: Any = training._of_pictures("clip", Clip(ClipConfig()), encoder, parse_source(SPEC), Places())
    assert made.objective.log_scale.is_meta


class InterruptedTrainingError(Exception):
    """Stands for a kill."""


@pytest.mark.gpu
def test_a_gpu_goes_on_where_it_stopped(mad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = config(lr=0.01, encoder={"init_seed": 0, "device": "cuda"})
    straight = train("clip", mad, SPEC, tmp_path / "straight", there)
    original = Loop._training_step

    def killed(self: Loop, pairs: Any, rows: Any, step: int) -> float:
        if step == 1:  # the state is that before the first
            raise InterruptedTrainingError
        return original(self, pairs, rows, step)

    monkeypatch.setattr(Loop, "_training_step", killed)
    with pytest.raises(InterruptedTrainingError):
        train("clip", mad, SPEC, tmp_path / "twice", there)
    monkeypatch.setattr(Loop, "_training_step", original)
    resumed = train("clip", mad, SPEC, tmp_path / "twice", there)
    for name in ("loss", "validation_loss"):
        assert resumed[name] == pytest.approx(straight[name], rel=1e-3)


def test_names_and_settings_are_checked(mad: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'clip'"):
        train("clipp", mad, SPEC, tmp_path, config())
    with pytest.raises(UnknownNameError, match="did you mean 'init_seed'"):
        train("clip", mad, SPEC, tmp_path, config(encoder={"init_sed": 1}))
    with pytest.raises(UnknownNameError, match="initial_temperature"):
        train("clip", mad, SPEC, tmp_path, config(objective={"temperature": 1.0}))
    with pytest.raises(UsageError, match="steps"):
        config(steps=0)
    with pytest.raises(VlpipeError, match="does not exist"):
        train("clip", tmp_path / "none", SPEC, tmp_path, config())


def test_a_manifest_without_captioned_training_images_is_refused(tmp_path: Path) -> None:
    images = [{"image_id": "a", "path": "a.png", "split": "test"}]
    write_manifest(tmp_path / "m", name="t", source="s", licence="l", image_root=tmp_path, images=images, texts=[])
    with pytest.raises(VlpipeError, match="no image of the split 'train' with a text of the role 'caption'"):
        train("clip", tmp_path / "m", SPEC, tmp_path / "run", config())


def test_the_command(mad: Path, tmp_path: Path) -> None:
    settings = tmp_path / "x.toml"
    settings.write_text("steps = 900\nbatch_size = 4\n[encoder]\ninit_seed = 0\n", encoding="utf-8")
    options = ["clip", "--manifest", str(mad), "--encoder", SPEC, "--config", str(settings), "--set", "steps=2"]
    printed = CliRunner().invoke(train_backbone, [*options, "--out", str(tmp_path / "run"), "--json"])
    assert printed.exit_code == 0, printed.output
    assert json.loads(printed.stdout)["step"] == 2
    again = CliRunner().invoke(train_backbone, [*options, "--out", str(tmp_path / "run")])
    assert "weights.safetensors: step 2" in again.stdout
