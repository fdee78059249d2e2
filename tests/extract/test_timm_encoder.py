"""timm models of real architectures, small and random, against the library's own calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image

from vlpipe.extract.contracts import ImageItem, TextItem
from vlpipe.extract.encoders.timm import Timm, TimmConfig
from vlpipe.extract.output_names import layer_of
from vlpipe.foundation.errors import UsageError, VlpipeError

CLOSE = {"rtol": 0, "atol": 1e-5}
SWIN: dict[str, Any] = {"embed_dim": 16, "depths": [1, 1, 2, 1], "num_heads": [1, 1, 2, 2]}
VIT = {"embed_dim": 32, "depth": 3, "num_heads": 2}
# Name of the architecture, its arguments, tokens before the patches, layers, patches of the last one.
FAMILIES: dict[str, tuple[str, dict[str, Any], int, int, int]] = {
    "vit": ("vit_tiny_patch16_224", VIT, 1, 3, 196),
    "vit_map": ("test_vit3", {}, 1, 9, 100),
    "dinov2": ("vit_small_patch14_dinov2", VIT | {"img_size": 56}, 1, 3, 16),
    "registers": ("vit_small_patch14_reg4_dinov2", VIT | {"img_size": 224}, 5, 3, 256),
    "eva": ("eva02_tiny_patch14_224", VIT, 1, 3, 256),
    "swin": ("swin_tiny_patch4_window7_224", SWIN, 0, 4, 49),
    "convnext": ("convnext_tiny", {"depths": [1, 1, 2, 1], "dims": [8, 16, 24, 32]}, 0, 4, 49),
    "resnet50": ("resnet50", {"layers": [1, 1, 1, 1], "base_width": 16}, 0, 4, 49),
    "efficientnet": ("test_efficientnet", {}, 0, 5, 25),
    "hiera": ("hiera_tiny_224", {"embed_dim": 16, "num_heads": 1, "stages": [1, 1, 1, 1]}, 0, 4, 49),
    "cait": ("cait_xxs24_224", {"embed_dim": 32, "depth": 2, "num_heads": 2}, 1, 2, 196),
}


def saved(folder: Path, architecture: str, arguments: dict[str, Any]) -> Path:
    """A random model as timm saves it for the hub, every parameter stirred."""
    torch.manual_seed(0)
    model = timm.create_model(architecture, **arguments)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    timm.models.save_for_hf(model, folder, model_args=arguments, safe_serialization=True)
    return folder


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Timm, Any]:
    """Its name, the encoder, and the same model loaded by the library itself."""
    architecture, arguments, *_ = FAMILIES[request.param]
    folder = saved(tmp_path_factory.mktemp("timm") / request.param, architecture, arguments)
    direct = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return request.param, Timm(str(folder), TimmConfig(device="cpu")), direct


def rows_of(encoder: Timm, items: list[Any], outputs: tuple[str, ...]) -> dict[str, torch.Tensor]:
    return encoder.encode(encoder.collate([encoder.prepare(item) for item in items]), outputs)


def test_final_outputs_equal_the_librarys(family: tuple[str, Timm, Any], draw: Callable[..., Image.Image]) -> None:
    name, encoder, direct = family
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(direct), is_training=False)
    items = [ImageItem(str(seed), draw(seed, size)) for seed, size in enumerate([(90, 40), (32, 32), (64, 128)])]
    pixels = torch.stack([transform(item.picture) for item in items])
    found = rows_of(encoder, items, ("pooled", "patch_mean", "tokens"))
    _, _, prefix, _, patches = FAMILIES[name]
    with torch.inference_mode():
        features = direct.forward_features(pixels)
        direct.reset_classifier(0)
        pooled = direct(pixels)
    if features.ndim == 4:
        features = features.flatten(1, 2) if name == "swin" else features.flatten(2).transpose(1, 2)
    torch.testing.assert_close(found["pooled"], pooled, **CLOSE)
    torch.testing.assert_close(found["tokens"], features[:, prefix:], **CLOSE)
    torch.testing.assert_close(found["patch_mean"], features[:, prefix:].mean(1), **CLOSE)
    assert found["tokens"].shape[1] == patches
    assert ("cls" in encoder.outputs("image")) == bool(
        prefix and name != "vit_map"
    )  # that one has a register only
    if "cls" in encoder.outputs("image"):
        torch.testing.assert_close(rows_of(encoder, items, ("cls",))["cls"], features[:, 0], **CLOSE)


def test_layers_equal_the_librarys_and_are_counted_alike(
    family: tuple[str, Timm, Any], draw: Callable[..., Image.Image]
) -> None:
    name, encoder, direct = family
    item = ImageItem("x", draw(5))
    found = rows_of(encoder, [item], tuple(encoder.outputs("image")))
    with torch.inference_mode():
        _, maps = direct.forward_intermediates(encoder.transform(item.picture)[None], output_fmt="NCHW")
    layers = FAMILIES[name][3]
    numbers = {layer_of(output)[0] for output in found if layer_of(output)}  # type: ignore[index]
    assert numbers == set(range(1 if name == "hiera" else 0, layers + 1))
    first = layers + 1 - len(maps)
    assert first == (0 if name == "resnet50" else 1)
    for layer, state in enumerate(maps, first):
        patches = state.flatten(2).transpose(1, 2)
        torch.testing.assert_close(found[f"layer_{layer:02d}.tokens"], patches, **CLOSE)
        torch.testing.assert_close(found[f"layer_{layer:02d}.mean"], patches.mean(1), **CLOSE)


def test_layer_0_and_class_tokens_by_hand(tmp_path: Path, draw: Callable[..., Image.Image]) -> None:
    folder = saved(tmp_path, "vit_small_patch14_reg4_dinov2", VIT | {"img_size": 56})
    encoder = Timm(str(folder), TimmConfig(device="cpu"))
    model, item = encoder.model, ImageItem("x", draw(6))
    found = rows_of(encoder, [item], tuple(encoder.outputs("image")))
    with torch.inference_mode():
        state = model.norm_pre(model._pos_embed(model.patch_embed(encoder.transform(item.picture)[None])))
        for layer in range(4):
            torch.testing.assert_close(found[f"layer_{layer:02d}.cls"], state[:, 0], **CLOSE)
            torch.testing.assert_close(found[f"layer_{layer:02d}.tokens"], state[:, 5:], **CLOSE)
            if layer < 3:
                state = model.blocks[layer](state)
        torch.testing.assert_close(found["cls"], model.norm(state)[:, 0], **CLOSE)


def test_rows_do_not_depend_on_batch_mates_and_the_model_stays_as_it_is(
    family: tuple[str, Timm, Any], draw: Callable[..., Image.Image]
) -> None:
    _, encoder, _ = family
    items = [ImageItem(str(seed), draw(seed)) for seed in range(3)]
    before = {name: tensor.clone() for name, tensor in encoder.model.state_dict().items()}
    encoder.tower("image").train()
    outputs = tuple(encoder.outputs("image"))
    together = rows_of(encoder, items, outputs)
    alone = rows_of(encoder, items[1:2], outputs)
    for name, rows in together.items():
        assert rows.shape == (3, *encoder.outputs("image")[name].shape)
        torch.testing.assert_close(alone[name][0], rows[1], **CLOSE)
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.model.state_dict().items())
    assert not encoder.model.training


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_reduced_precision_is_near_and_named(
    precision: str, tmp_path: Path, draw: Callable[..., Image.Image]
) -> None:
    folder = saved(tmp_path, "vit_tiny_patch16_224", VIT)
    exact, rough = (
        Timm(str(folder), TimmConfig(device="cpu", precision=name))  # type: ignore[arg-type]
        for name in ("float32", precision)
    )
    found = [rows_of(encoder, [ImageItem("x", draw(1))], ("pooled",))["pooled"] for encoder in (exact, rough)]
    assert found[1].dtype == torch.float32
    assert 0 < (found[0] - found[1]).abs().max() < 0.2
    different = {k for k, v in exact.identity("image").items() if rough.identity("image")[k] != v}
    assert different == {"precision"}


def test_the_tower_has_gradients(tmp_path: Path, draw: Callable[..., Image.Image]) -> None:
    encoder = Timm(str(saved(tmp_path, "vit_tiny_patch16_224", VIT)), TimmConfig(device="cpu"))
    batch = encoder.collate([encoder.prepare(ImageItem("x", draw(0)))])
    pooled = encoder.tower("image")(batch.tensors)
    assert pooled.requires_grad
    torch.testing.assert_close(pooled, encoder.encode(batch, ("pooled",))["pooled"], **CLOSE)


def test_another_size_of_picture(tmp_path: Path, draw: Callable[..., Image.Image]) -> None:
    folder = saved(tmp_path, "vit_small_patch14_dinov2", VIT | {"img_size": 112})
    encoder = Timm(str(folder), TimmConfig(device="cpu", image_size=56))
    direct = timm.create_model(f"local-dir:{folder}", pretrained=True, img_size=56).eval()
    item = ImageItem("x", draw(2))
    pixels = encoder.prepare(item).tensors["image"][None]
    assert pixels.shape == (1, 3, 56, 56)
    assert encoder.outputs("image")["tokens"].shape == (16, 32)
    with torch.inference_mode():
        expected = direct.forward_head(direct.forward_features(pixels), pre_logits=True)
    torch.testing.assert_close(rows_of(encoder, [item], ("pooled",))["pooled"], expected, **CLOSE)
    other = Timm(str(folder), TimmConfig(device="cpu")).identity("image")
    assert {k for k, v in encoder.identity("image").items() if other[k] != v} == {"weights", "preprocessing"}


@pytest.mark.parametrize("value", [0, 255])
def test_each_models_own_mean_and_std(value: int, tmp_path: Path) -> None:
    folder = saved(tmp_path, "vit_tiny_patch16_224", VIT)
    picture = ImageItem("x", Image.new("RGB", (50, 20), (value,) * 3))
    pixels = Timm(str(folder), TimmConfig(device="cpu")).prepare(picture).tensors["image"]
    torch.testing.assert_close(pixels, torch.full((3, 224, 224), value / 127.5 - 1))
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"] |= {"mean": [0.0] * 3, "std": [0.25] * 3, "crop_mode": "squash", "crop_pct": 1.0}
    (folder / "config.json").write_text(json.dumps(config))
    other = Timm(str(folder), TimmConfig(device="cpu"))
    torch.testing.assert_close(other.prepare(picture).tensors["image"], torch.full((3, 224, 224), value / 63.75))
    assert '"crop_mode":"squash"' in other.identity("image")["preprocessing"]
    over = Timm(str(folder), TimmConfig(device="cpu", std=[0.5] * 3))
    torch.testing.assert_close(over.prepare(picture).tensors["image"], torch.full((3, 224, 224), value / 127.5))


def test_what_it_cannot_read_is_refused() -> None:
    encoder = Timm("test_vit", TimmConfig(device="cpu", random_init=True))
    assert encoder.sides() == ("image",)
    assert encoder.outputs("text") == {}
    with pytest.raises(UsageError, match="images, not texts"):
        encoder.prepare(TextItem("x", "a dog"))
    several = Timm("coat_tiny", TimmConfig(device="cpu", random_init=True))
    with pytest.raises(VlpipeError, match="CoaT gives features of several kinds"):
        several.outputs("image")
