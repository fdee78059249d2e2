"""Each family of picture models against a direct call of the library, output by output, layer by layer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from toys.hf_families import BLOCKS, PATCHES, PICTURES, save, squares
from transformers import AutoImageProcessor, AutoModel, ViTMAEConfig, ViTMAEForPreTraining

from vlpipe.extract.contracts import ImageItem, Prepared
from vlpipe.extract.encoders.hf import Hf, HfConfig
from vlpipe.extract.output_names import find_output, main_output
from vlpipe.foundation.errors import UsageError, VlpipeError

CLOSE = {"rtol": 0, "atol": 1e-5}
MAIN = {"siglip-vision": "patch_mean", "swin": "patch_mean", "resnet": "patch_mean", "convnext": "patch_mean"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("families")

    def saved(name: str) -> Path:
        model, processor, *_ = PICTURES[name]
        return root / name if (root / name).exists() else save(root / name, model, processor)

    return saved


def loaded(folder: Path, **settings: Any) -> Hf:
    return Hf(str(folder), HfConfig(device="cpu", **settings))


def batch(encoder: Hf, pictures: list[Image.Image]) -> Prepared:
    return encoder.collate([encoder.prepare(ImageItem("x", picture)) for picture in pictures])


@pytest.fixture(scope="module")
def pictures(draw: Callable[..., Image.Image]) -> list[Image.Image]:
    return [draw(seed, size) for seed, size in enumerate([(90, 60), (64, 64), (30, 70)])]


def places(state: Tensor, before: int) -> Tensor:
    """Patches of a state, (rows, patches, width), by a loop over rows and columns where it is a map."""
    if state.ndim == 3:
        return state[:, before:]
    *_, height, width = state.shape
    return torch.stack([state[:, :, y, x] for y in range(height) for x in range(width)], dim=1)


@pytest.mark.parametrize("name", PICTURES)
def test_every_output_equals_a_direct_call(
    name: str, folder: Callable[[str], Path], pictures: list[Image.Image]
) -> None:
    encoder, (_, _, before, patches) = loaded(folder(name)), PICTURES[name]
    pixels = AutoImageProcessor.from_pretrained(folder(name))(pictures, return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        direct = AutoModel.from_pretrained(folder(name)).eval()(pixels, output_hidden_states=True)
    expected = {"pooler": direct.pooler_output.flatten(1)}
    states = {"": direct.last_hidden_state} | {f"layer_{k:02d}.": s for k, s in enumerate(direct.hidden_states)}
    for prefix, state in states.items():
        if before and state.ndim == 3:
            expected[f"{prefix}cls"] = state[:, 0]
        expected[f"{prefix}tokens"] = places(state, before)
        expected[prefix + ("mean" if prefix else "patch_mean")] = places(state, before).mean(1)
    outputs = encoder.outputs("image")
    assert outputs.keys() == expected.keys()
    assert outputs["tokens"].shape[0] == patches
    assert main_output(outputs) == MAIN.get(name, "cls")
    found = encoder.encode(batch(encoder, pictures), tuple(outputs))
    for output, values in expected.items():
        assert found[output].shape == (3, *outputs[output].shape)
        torch.testing.assert_close(found[output], values, **CLOSE)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_does_not_depend_on_its_batch_mates(
    name: str, folder: Callable[[str], Path], pictures: list[Image.Image]
) -> None:
    encoder = loaded(folder(name))
    outputs = tuple(encoder.outputs("image"))
    together = encoder.encode(batch(encoder, pictures), outputs)
    for row, picture in enumerate(pictures):
        for output, values in encoder.encode(batch(encoder, [picture]), outputs).items():
            torch.testing.assert_close(values[0], together[output][row], **CLOSE)


@pytest.mark.parametrize("name", ["vit", "dinov2", "dinov2-registers", "dinov3", "siglip-vision", "clip-vision"])
def test_layer_k_is_what_block_k_gives(
    name: str, folder: Callable[[str], Path], pictures: list[Image.Image]
) -> None:
    encoder = loaded(folder(name))
    blocks = next(m for m in encoder.model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == BLOCKS)
    given: list[Tensor] = []
    for block in blocks:
        block.register_forward_hook(lambda _m, _i, out: given.append(out[0] if isinstance(out, tuple) else out))
    blocks[0].register_forward_pre_hook(lambda _m, inputs: given.append(inputs[0]))
    layers = [find_output(f"layer_{k}.tokens", encoder.outputs("image")) for k in (0, 1, -2, -1)]
    prepared = batch(encoder, pictures)
    given.clear()
    found = encoder.encode(prepared, tuple(layers))
    assert layers == ["layer_00.tokens", "layer_01.tokens", "layer_02.tokens", "layer_03.tokens"]
    for layer, state in zip(layers, given, strict=True):
        torch.testing.assert_close(found[layer], places(state, PICTURES[name][2]), **CLOSE)
    with pytest.raises(UsageError, match=r"layers 0 \(embeddings\) to 3"):
        find_output("layer_4.tokens", encoder.outputs("image"))


def test_mae_sees_every_patch_in_its_order(tmp_path: Path, pictures: list[Image.Image]) -> None:
    config = ViTMAEConfig(**PATCHES, mask_ratio=0.75, decoder_num_hidden_layers=1, decoder_num_attention_heads=2)
    folder = save(tmp_path / "mae", lambda: ViTMAEForPreTraining(config), squares(32))
    encoder = loaded(folder)
    outputs = tuple(encoder.outputs("image"))
    assert encoder.outputs("image")["tokens"].shape == (16, 32)
    found = encoder.encode(batch(encoder, pictures), outputs)
    assert all(torch.equal(encoder.encode(batch(encoder, pictures), outputs)[name], found[name]) for name in found)

    pixels = AutoImageProcessor.from_pretrained(folder)(pictures, return_tensors="pt")["pixel_values"]
    model = AutoModel.from_pretrained(folder, mask_ratio=0.0).eval()
    with torch.inference_mode():
        direct = model(pixels, output_hidden_states=True)  # in a random order: put back by `ids_restore`
    order = direct.ids_restore[..., None].expand(-1, -1, 32)
    torch.testing.assert_close(found["tokens"], direct.last_hidden_state[:, 1:].gather(1, order), **CLOSE)
    torch.testing.assert_close(found["cls"], direct.last_hidden_state[:, 0], **CLOSE)
    for layer, state in enumerate(direct.hidden_states):
        torch.testing.assert_close(found[f"layer_{layer:02d}.tokens"], state[:, 1:].gather(1, order), **CLOSE)


def test_a_pooler_without_weights_is_no_output(folder: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(folder("vit"), tmp_path / "vit")
    state = load_file(copy / "model.safetensors")
    kept = {name: tensor for name, tensor in state.items() if "pooler." not in name}
    save_file(kept, copy / "model.safetensors", {"format": "pt"})
    encoder = loaded(copy)
    assert len(kept) == len(state) - 2
    assert "pooler" not in encoder.outputs("image")
    assert encoder.identity("image") == loaded(copy).identity("image")  # and its random weights are no one's


def test_the_kernels_are_named_as_they_run(folder: Callable[[str], Path]) -> None:
    assert loaded(folder("vit")).identity("image")["kernels"] == "attention sdpa"
    assert loaded(folder("vit"), attention="eager").identity("image")["kernels"] == "attention eager"
    with pytest.raises(VlpipeError, match="does not support"):
        loaded(folder("resnet"), attention="sdpa")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["dinov3", "swin", "resnet", "siglip-vision"])
def test_reduced_precision_equals_the_librarys_own(
    name: str, precision: str, folder: Callable[[str], Path], pictures: list[Image.Image]
) -> None:
    encoder = loaded(folder(name), precision=precision)
    prepared = batch(encoder, pictures)
    found = encoder.encode(prepared, ("tokens",))["tokens"]
    dtype = getattr(torch, precision)
    with torch.inference_mode():
        model = AutoModel.from_pretrained(folder(name), dtype=dtype).eval()
        direct = model(prepared.tensors["pixel_values"].to(dtype)).last_hidden_state
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, places(direct, PICTURES[name][2]).float(), rtol=0, atol=0)


def test_a_processor_that_keeps_the_shape_is_refused_by_its_row(
    folder: Callable[[str], Path], pictures: list[Image.Image], tmp_path: Path
) -> None:
    copy = shutil.copytree(folder("resnet"), tmp_path / "copy")
    rules = json.loads((copy / "preprocessor_config.json").read_text())
    rules |= {"size": {"shortest_edge": 64}, "image_processor_type": "BitImageProcessor", "do_center_crop": False}
    (copy / "preprocessor_config.json").write_text(json.dumps(rules))
    encoder = loaded(copy)
    with pytest.raises(
        VlpipeError, match=r"makes \(3, 64, 96\) of a picture of \(90, 60\), expected \(3, 64, 64\)"
    ):
        encoder.prepare(ImageItem("x", pictures[0]))
    assert encoder.prepare(ImageItem("x", pictures[1])).tensors["pixel_values"].shape == (3, 64, 64)


@pytest.mark.parametrize("name", ["dinov3", "resnet"])
def test_the_tower_trains_the_models_own_parameters(
    name: str, folder: Callable[[str], Path], pictures: list[Image.Image]
) -> None:
    encoder = loaded(folder(name))
    output = main_output(encoder.outputs("image"))
    prepared = batch(encoder, pictures)
    tower = encoder.tower("image").eval()
    rows = tower(prepared.tensors)
    torch.testing.assert_close(rows, encoder.encode(prepared, (output,))[output], **CLOSE)
    rows.square().sum().backward()
    assert {id(p) for p in tower.parameters()} == {id(p) for p in encoder.model.parameters()}
    assert sum(p.grad is not None for p in tower.parameters()) > 5
