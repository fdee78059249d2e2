"""Where a timm model comes from, what is refused as one, and what it is told apart by."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from vlpipe.extract.contracts import ImageItem
from vlpipe.extract.encoders.timm import Timm, TimmConfig
from vlpipe.extract.load import load_encoder
from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError

CPU = TimmConfig(device="cpu")


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random `test_resnet` with its classifier, in the library's own folder form."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("timm") / "resnet"
    timm.models.save_for_hf(timm.create_model("test_resnet"), folder, safe_serialization=True)
    return folder


def pooled(encoder: Timm, picture: Image.Image) -> torch.Tensor:
    return encoder.encode(encoder.collate([encoder.prepare(ImageItem("x", picture))]), ("pooled",))["pooled"]


def test_a_folder_a_file_and_a_wrapped_file_are_one_model(
    resnet: Path, tmp_path: Path, draw: Callable[..., Image.Image]
) -> None:
    state = load_file(resnet / "model.safetensors")
    torch.save({"state_dict": {f"module.{n}": t for n, t in state.items()}, "epoch": 3}, tmp_path / "wrapped.pth")
    folder, file, wrapped = (
        Timm(spec, CPU)
        for spec in (
            str(shutil.copytree(resnet, tmp_path / "copy")),
            f"test_resnet@{resnet / 'model.safetensors'}",
            f"test_resnet@{tmp_path / 'wrapped.pth'}",
        )
    )
    assert folder.identity("image") == file.identity("image") == wrapped.identity("image")
    assert str(tmp_path) not in str(folder.identity("image"))
    assert torch.equal(pooled(folder, draw(1)), pooled(file, draw(1)))
    assert torch.equal(pooled(folder, draw(1)), pooled(wrapped, draw(1)))
    assert not folder.notes
    assert "prepared as for test_resnet.r160_in1k" in file.notes[0]


def test_swavs_file_has_no_classifier_and_more_than_the_model(resnet: Path, tmp_path: Path) -> None:
    state = load_file(resnet / "model.safetensors")
    swav = {f"module.{name}": tensor for name, tensor in state.items() if not name.startswith("fc.")}
    swav |= {"module.projection_head.0.weight": torch.ones(3), "module.prototypes.weight": torch.ones(2)}
    torch.save(swav, tmp_path / "swav.pth.tar")
    encoder = Timm(f"test_resnet@{tmp_path / 'swav.pth.tar'}", CPU)
    assert encoder.identity("image") == Timm(str(resnet), CPU).identity("image")
    assert "2 tensors are not read, first 'projection_head.0.weight'" in encoder.notes[1]


def test_a_checkpoint_of_dinov2s_authors(tmp_path: Path, draw: Callable[..., Image.Image]) -> None:
    torch.manual_seed(1)
    model = timm.create_model("vit_small_patch14_dinov2", img_size=518).eval()
    state = model.state_dict()
    theirs = {"mask_token": torch.zeros(1, 384)}
    theirs |= {name: tensor + 0.01 for name, tensor in state.items()}
    torch.save(theirs, tmp_path / "dinov2_vits14_pretrain.pth")
    encoder = Timm(f"vit_small_patch14_dinov2@{tmp_path / 'dinov2_vits14_pretrain.pth'}", CPU)
    for name, tensor in encoder.model.state_dict().items():
        torch.testing.assert_close(tensor, state[name] + 0.01, rtol=0, atol=0)


def test_the_classifier_is_no_part_of_the_identity_but_weights_and_arguments_are(
    resnet: Path, tmp_path: Path
) -> None:
    first = Timm(str(resnet), CPU).identity("image")

    def changed(name: str, **config: Any) -> set[str]:
        folder = shutil.copytree(resnet, tmp_path / name.replace(".", "_"))
        state = load_file(folder / "model.safetensors")
        save_file({n: t + 1 if n == name else t for n, t in state.items()}, folder / "model.safetensors")
        written = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(written | config))
        other = Timm(str(folder), CPU).identity("image")
        return {field for field in first if other[field] != first[field]}

    assert changed("fc.weight") == set()
    assert changed("layer1.0.conv1.weight") == {"weights"}
    assert changed("nothing", model_args={"output_stride": 16}) == {"architecture"}
    assert changed("none", global_pool="max") <= {"architecture"}
    rules = json.loads((resnet / "config.json").read_text())["pretrained_cfg"]
    assert changed("no", pretrained_cfg=rules | {"interpolation": "bicubic"}) == {"preprocessing"}


def test_a_checkpoint_with_tensors_missing_is_refused(resnet: Path, tmp_path: Path) -> None:
    state = load_file(resnet / "model.safetensors")
    gone = next(name for name in state if "conv2.weight" in name)
    save_file({name: tensor for name, tensor in state.items() if name != gone}, tmp_path / "less.safetensors")
    with pytest.raises(VlpipeError, match=f"lacks 1 tensors .*{gone}"):
        Timm(f"test_resnet@{tmp_path / 'less.safetensors'}", CPU)
    folder = shutil.copytree(resnet, tmp_path / "folder")
    shutil.copy(tmp_path / "less.safetensors", folder / "model.safetensors")
    with pytest.raises(VlpipeError, match=f"cannot be loaded.*{gone}"):
        Timm(str(folder), CPU)


def test_code_in_a_checkpoint_does_not_run(resnet: Path, tmp_path: Path) -> None:
    evil = {"state_dict": _Evil(tmp_path / "ran")}
    torch.save(evil, tmp_path / "evil.pth")
    with pytest.raises(VlpipeError, match="cannot be loaded"):
        Timm(f"test_resnet@{tmp_path / 'evil.pth'}", CPU)
    folder = shutil.copytree(resnet, tmp_path / "folder")
    (folder / "model.safetensors").unlink()
    torch.save(evil, folder / "pytorch_model.bin")
    with pytest.raises(VlpipeError, match="cannot be loaded"):
        Timm(str(folder), CPU)
    assert not (tmp_path / "ran").exists()


def test_random_init_is_seeded_and_only_on_request() -> None:
    state = torch.random.get_rng_state()
    weights = [
        Timm("test_resnet", TimmConfig(device="cpu", random_init=True, seed=seed)).weights for seed in (1, 1, 2)
    ]
    assert weights[0] == weights[1] != weights[2]
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("model", "kind", "says"),
    [
        ("resnet5@./gone.pt", VlpipeError, "no checkpoint file"),
        ("resnet5", UnknownNameError, "did you mean 'resnet50'"),
        ("resnet50.a1_in1", UnknownNameError, "did you mean 'resnet50.a1_in1k'"),
        ("./nowhere", VlpipeError, "no folder"),
        ("", UsageError, "needs a model"),
    ],
)
def test_what_does_not_exist_is_one_line(model: str, kind: type[VlpipeError], says: str) -> None:
    with pytest.raises(kind, match=says) as caught:
        load_encoder(f"timm:{model}", {})
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(VlpipeError, match="cannot be loaded") as caught:
        load_encoder(f"timm:{tmp_path}", {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", ["resnet18.a1_in1k", "hf-hub:timm/resnet18.a1_in1k"])
def test_without_a_network_there_is_an_answer_at_once(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    waits: list[float] = []
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(time, "sleep", waits.append)
    with pytest.raises(VlpipeError, match="without a network give a local checkpoint") as caught:
        load_encoder(f"timm:{model}", {})
    assert waits == []
    assert "\n" not in str(caught.value)


def test_a_model_in_the_hubs_local_cache_is_loaded(
    resnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "models--some--resnet"
    shutil.copytree(resnet, place / "snapshots" / "abc")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("vlpipe.extract.encoders.timm.hub_answers", lambda: False)
    assert Timm("hf-hub:some/resnet", CPU).identity("image") == Timm(str(resnet), CPU).identity("image")


def test_a_folder_or_a_file_asks_nobody(resnet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlpipe.extract.encoders.timm.hub_answers", lambda: pytest.fail("asked"))
    Timm(str(resnet), CPU)
    Timm(f"test_resnet@{resnet / 'model.safetensors'}", CPU)


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)
