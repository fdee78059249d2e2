"""What a live run refuses, and with which exit code."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from vlpipe.backbones.commands import train_backbone
from vlpipe.backbones.live import Places
from vlpipe.backbones.settings import LoopConfig
from vlpipe.backbones.towers import Carried
from vlpipe.backbones.train import train
from vlpipe.cache_store.errors import NotCachedError
from vlpipe.extract.encoders.bundled import Bundled
from vlpipe.foundation.config import resolve
from vlpipe.foundation.errors import StaleError, UnknownNameError, UsageError, VlpipeError
from vlpipe.manifests.writer import write_manifest

World = Any
SPEC = "bundled:mad-clip"


def test_an_autoencoder_of_other_features(world: World, tmp_path: Path) -> None:
    with pytest.raises(StaleError, match="weights") as found:
        world.live(tmp_path, source=f"image=random_features#pooled::{world.sae}")
    assert found.value.exit_code == 4


def test_a_run_behind_the_tower_of_other_texts(world: World, tmp_path: Path) -> None:
    sources = f"image={SPEC}", "text=random_features"
    projection = world.head("projection", *sources, objective="con", latent=18, epochs=0)
    with pytest.raises(StaleError, match="trained on other texts than 'bundled:mad-clip' gives: "):
        world.live(tmp_path, spec=f"{SPEC}::{projection}")
    with pytest.raises(UsageError, match=f"run '{world.sae}' reads no texts"):
        world.live(tmp_path, spec=f"{SPEC}::{world.sae}")
    with pytest.raises(UnknownNameError, match="no run is named"):
        world.live(tmp_path, spec=f"{SPEC}::projection-0")


def test_a_run_that_gradients_do_not_pass(world: World, tmp_path: Path) -> None:
    adapter = world.head("text_adapter", f"image={SPEC}", f"text={SPEC}", epochs=0)
    with pytest.raises(UsageError, match=f"gradients do not pass '{adapter}'"):
        world.live(tmp_path, spec=f"{SPEC}::{adapter}")


def test_widths_that_differ(world: World, bert: Path, tmp_path: Path) -> None:
    with pytest.raises(VlpipeError, match="texts have 24 values a row and the autoencoder's images 18"):
        world.live(tmp_path, spec=f"hf:{bert}")
    with pytest.raises(VlpipeError, match="images have 18 values a row and texts 24"):
        world.live(tmp_path, f"hf:{bert}", f"image={SPEC}#pooled", objective={"head": "smartclip"})


def test_encoders_that_cannot_learn(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="'random_features' cannot be saved after training"):
        world.live(tmp_path, spec="random_features", encoder={})
    with pytest.raises(UnknownNameError, match="output"):
        world.live(tmp_path, spec=f"{SPEC}#mean")
    monkeypatch.setattr(Bundled, "sides", lambda self: ("image",))
    with pytest.raises(UsageError, match="has no text side"):
        world.live(tmp_path)


def test_images_that_are_not_there(world: World, tmp_path: Path) -> None:
    nowhere, config = Places((), world.cache, world.runs), LoopConfig(text_lr=1e-5)
    with pytest.raises(UsageError, match=r"--source image=SPEC#OUTPUT\[::RUN\]"):
        train("tevi", world.manifest, SPEC, tmp_path, config, nowhere)
    with pytest.raises(UsageError, match="stands on a finished run"):
        world.live(tmp_path, source=f"image={SPEC}#pooled")
    with pytest.raises(NotCachedError, match="vlpipe extract"):
        world.live(tmp_path, source=f"image={SPEC}#tokens::{world.sae}")
    identity = world.head("identity", f"image={SPEC}", f"text={SPEC}")
    with pytest.raises(VlpipeError, match="its images come from a head 'Identity'"):
        world.live(tmp_path, source=f"image={SPEC}#pooled::{identity}")
    with pytest.raises(UnknownNameError, match="no role is named 'text'"):
        world.live(tmp_path, source=f"text={SPEC}#pooled")


def test_a_manifest_without_captions(world: World, tmp_path: Path) -> None:
    images = [{"image_id": "a", "path": "a.png", "split": "train"}]
    write_manifest(tmp_path / "m", name="m", source="s", licence="l", image_root=tmp_path, images=images, texts=[])
    with pytest.raises(NotCachedError):
        replace(world, manifest=tmp_path / "m").live(tmp_path / "out")


def test_settings_that_do_not_go_together(world: World, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="text_warmup_steps = 3: 'tevi' starts from trained texts"):
        world.live(tmp_path, text_warmup_steps=3)
    with pytest.raises(UsageError, match="text_lr: 'tevi' needs the rate of the text tower"):
        world.live(tmp_path, text_lr=None)
    with pytest.raises(UnknownNameError, match="no setting is named 'equation'"):
        world.live(tmp_path, objective={"head": "text_adapter", "equation": 10})
    with pytest.raises(UsageError, match="equation"):
        world.live(tmp_path, objective={"equation": 9})
    for given in (
        {"places": Places((world.images,))},
        {"spec": f"{SPEC}#pooled"},
        {"spec": f"{SPEC}::{world.sae}"},
    ):
        words = {"spec": SPEC, "places": Places(), **given}
        config = resolve(LoopConfig, {"encoder": {"device": "cpu"}})
        with pytest.raises(UsageError, match="'clip' reads pictures"):
            train("clip", world.manifest, out=tmp_path, config=config, **words)


def test_another_run_in_the_folder(world: World, tmp_path: Path) -> None:
    world.live(tmp_path)
    kept = (tmp_path / "config.toml").read_text()
    other = world.head("sae", f"image={SPEC}", latents=26, k=4, epochs=1, batch_size=16, seed=1)
    for changed in (
        {"text_lr": 0.1},
        {"objective": {"equation": 10}},
        {"source": f"image={SPEC}#pooled::{other}"},
    ):
        with pytest.raises(StaleError, match="holds a run with other settings"):
            world.live(tmp_path, **changed)
    assert (tmp_path / "config.toml").read_text() == kept


def test_texts_of_another_tower_under_the_trained_ones_name(world: World, tmp_path: Path) -> None:
    """They are never scored in silence."""
    line = shlex.split(world.live(tmp_path)["then"])
    trained = line[line.index("--encoder") + 1]
    world.extract(SPEC, "text", name=trained)
    with pytest.raises(StaleError, match="not made by the tower that this run trained: weights"):
        world.live(tmp_path)


def test_a_loss_that_is_not_finite(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vlpipe.backbones.objectives.tevi import Tevi

    monkeypatch.setattr(Tevi, "loss", lambda self, *_: {"loss": self.head.logit_scale * torch.nan})
    with pytest.raises(VlpipeError, match="the loss is nan; lower lr"):
        world.live(tmp_path)


def test_a_tower_alone_is_carried_nowhere() -> None:
    carried = Carried(torch.nn.Identity(), [], 3, torch.device("cpu"))
    assert carried.shape == (3,)


@pytest.mark.parametrize("foreign", ["head", "log", "config"])
def test_a_folder_that_is_not_its_own_is_left_as_it_is(world: World, tmp_path: Path, foreign: str) -> None:
    """A finished head's folder given as --out lost its config.toml, and the run with it."""
    out = tmp_path / "out"
    out.mkdir()
    if foreign == "head":
        shutil.copytree(world.runs / world.sae, out, dirs_exist_ok=True)
    elif foreign == "config":
        (out / "config.toml").write_text('kind = "sae"\n')
    else:
        (out / "log.jsonl").write_text('{"loss": 1}\n')
        (out / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    with pytest.raises(StaleError, match=r"that is no whole run of train-backbone; choose another --out"):
        world.live(out)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


def test_other_settings_are_named_and_misplaced_ones_too(world: World, tmp_path: Path) -> None:
    world.live(tmp_path / "out")
    with pytest.raises(StaleError, match=r"seed = 0 there, 1 asked"):
        world.live(tmp_path / "out", seed=1)
    asked = ["tevi", "--manifest", "m", "--encoder", SPEC, "--out", "o", "--set", "equation=10"]
    done = CliRunner().invoke(train_backbone, asked)
    assert isinstance(done.exception, UsageError)
    assert "--set 'objective={equation=...}'" in str(done.exception)
