"""Towers of every kind that open_clip builds, as small random models, against the library itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from vlpipe.extract.contracts import ImageItem, TextItem
from vlpipe.extract.encoders.open_clip import OpenClip, OpenClipConfig
from vlpipe.extract.output_names import layer_of

CLOSE = {"rtol": 0, "atol": 1e-5}
TEXTS = ["a dog", "two red cats on a mat", ""]
TINY_TEXT = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
TINY_VIT = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
SIGLIP_TEXT = TINY_TEXT | {"no_causal_mask": True, "pool_type": "last", "proj_bias": True}


def timm_tower(name: str, size: int, pool: str, proj: str | None, **more: Any) -> dict[str, Any]:
    vision = {"image_size": size, "timm_model_name": name, "timm_pool": pool, "timm_proj": proj}
    return {"custom_text": True, "vision_cfg": vision, "text_cfg": TINY_TEXT, **more}


FAMILIES: dict[str, dict[str, Any]] = {
    "openai": {"quick_gelu": True, "vision_cfg": TINY_VIT, "text_cfg": TINY_TEXT},
    "laion": {"vision_cfg": TINY_VIT, "text_cfg": TINY_TEXT},
    "clipa": {
        "vision_cfg": TINY_VIT | {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True},
        "text_cfg": TINY_TEXT | {"no_causal_mask": True, "pool_type": "last"},
    },
    "resnet": {"vision_cfg": {"image_size": 64, "layers": [1, 2, 1, 1], "width": 8}, "text_cfg": TINY_TEXT},
    "coca": {
        "vision_cfg": TINY_VIT | {"attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True},
        "text_cfg": TINY_TEXT | {"embed_cls": True, "output_tokens": True},
        "multimodal_cfg": TINY_TEXT | {"attn_pooler_heads": 2},
        "custom_text": True,
    },
    "siglip": timm_tower("test_vit3", 160, "map", "none", text_cfg=SIGLIP_TEXT, init_logit_bias=-10, embed_dim=96),
    "pe": timm_tower("test_vit3", 160, "map", None),
    "eva": timm_tower("eva02_tiny_patch14_224", 224, "token", None),
    "mean": timm_tower("test_vit2", 160, "avg", "linear"),
    "convnext": timm_tower("test_convnext", 160, "", "linear"),
    "convnext_mlp": timm_tower("test_convnext", 160, "", "mlp"),
    "swin": timm_tower("swin_tiny_patch4_window7_224", 224, "", "linear"),
    "mobileclip": timm_tower("fastvit_t8", 256, "avg", None),
}


def loaded(family: str, folder: Path, **more: Any) -> OpenClip:
    """A random model whose parameters are all stirred, since some start at zero or one."""
    path = folder / f"{family}.json"
    path.write_text(json.dumps({"embed_dim": 16, **FAMILIES[family], **more}))
    encoder = OpenClip(str(path), OpenClipConfig(device="cpu", random_init=True))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in encoder.model.named_parameters():
            if "logit" not in name:
                parameter.add_(0.02 * torch.randn_like(parameter))
    return encoder


@pytest.fixture(scope="module", params=list(FAMILIES))
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenClip:
    found = loaded(request.param, tmp_path_factory.mktemp("family"))
    found.family = request.param  # type: ignore[attr-defined]
    return found


def rows_of(encoder: OpenClip, items: list[Any], outputs: tuple[str, ...]) -> dict[str, torch.Tensor]:
    return encoder.encode(encoder.collate([encoder.prepare(item) for item in items]), outputs)


def test_every_output_is_what_it_says_alone_and_in_a_batch(
    encoder: OpenClip, draw: Callable[..., Image.Image]
) -> None:
    before = {name: tensor.clone() for name, tensor in encoder.model.state_dict().items()}
    encoder.tower("image").train()
    for side, items in {
        "image": [ImageItem(str(seed), draw(seed)) for seed in range(3)],
        "text": [TextItem(text, text) for text in TEXTS],
    }.items():
        specs = encoder.outputs(side)  # type: ignore[arg-type]
        assert {layer_of(name)[0] for name in specs if layer_of(name)} >= {0, 1, 2}  # type: ignore[index]
        together = rows_of(encoder, items, tuple(specs))
        for name, rows in together.items():
            assert rows.shape == (3, *specs[name].shape)
            assert rows.dtype == torch.float32
            torch.testing.assert_close(rows_of(encoder, items[1:2], (name,))[name][0], rows[1], **CLOSE)
    assert not encoder.model.training
    for name, tensor in encoder.model.state_dict().items():  # CoCa's captioner has tensors that are never set
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)


def direct(encoder: OpenClip, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """By the library alone: embeddings, class tokens of the last layer or nothing, maps of the layers."""
    visual = encoder.model.visual
    vit = hasattr(visual, "class_embedding") or getattr(getattr(visual, "trunk", None), "num_prefix_tokens", 0)
    with torch.inference_mode():
        found = visual.forward_intermediates(pixels, output_extra_tokens=bool(vit))
        pooled = encoder.model.encode_image(pixels, normalize=False)
    prefix = found.get("image_intermediates_prefix") or [torch.empty(0)]
    return pooled, prefix[-1], found["image_intermediates"]


def test_image_outputs_equal_the_librarys(encoder: OpenClip, draw: Callable[..., Image.Image]) -> None:
    items = [ImageItem(str(seed), draw(seed)) for seed in range(2)]
    pixels = torch.stack([encoder.transform(item.picture) for item in items])
    pooled, prefix, maps = direct(encoder, pixels)
    specs = encoder.outputs("image")
    found = rows_of(encoder, items, tuple(specs))
    torch.testing.assert_close(found["pooled"], pooled, **CLOSE)
    first = 0 if encoder.family == "resnet" else 1  # type: ignore[attr-defined]
    last = first + len(maps) - 1
    assert {layer_of(name)[0] for name in specs if layer_of(name)} == set(range(last + 1))  # type: ignore[index]
    for layer, state in enumerate(maps, first):
        patches = state.flatten(2).transpose(1, 2)
        torch.testing.assert_close(found[f"layer_{layer:02d}.tokens"], patches, **CLOSE)
        torch.testing.assert_close(found[f"layer_{layer:02d}.mean"], patches.mean(1), **CLOSE)
    has_class = encoder.family in ("openai", "laion", "clipa", "coca", "eva")  # type: ignore[attr-defined]
    assert ("layer_00.cls" in specs) == (f"layer_{last:02d}.cls" in specs) == has_class
    if has_class:
        torch.testing.assert_close(found[f"layer_{last:02d}.cls"], prefix[:, 0], **CLOSE)


def test_layer_0_is_the_embeddings(encoder: OpenClip, draw: Callable[..., Image.Image]) -> None:
    visual, item = encoder.model.visual, ImageItem("x", draw(3))
    pixels = encoder.transform(item.picture)[None]
    with torch.inference_mode():
        if encoder.family == "resnet":  # type: ignore[attr-defined]
            expected = visual.stem(pixels).flatten(2).transpose(1, 2)
        elif not hasattr(visual, "trunk"):
            expected = visual._embeds(pixels)[:, 1:]
        elif encoder.family == "swin":  # type: ignore[attr-defined]
            expected = visual.trunk.patch_embed(pixels).flatten(1, 2)
        elif hasattr(visual.trunk, "stem"):
            expected = visual.trunk.stem(pixels).flatten(2).transpose(1, 2)
        else:
            embedded = visual.trunk._pos_embed(visual.trunk.patch_embed(pixels))
            state = embedded[0] if isinstance(embedded, tuple) else embedded
            expected = getattr(visual.trunk, "norm_pre", torch.nn.Identity())(state)[:, 1:]
    found = rows_of(encoder, [item], ("layer_00.tokens",))["layer_00.tokens"]
    torch.testing.assert_close(found, expected, **CLOSE)


def embedding_of(encoder: OpenClip, features: torch.Tensor) -> torch.Tensor:
    """What the library's own head makes of final states."""
    visual = encoder.model.visual
    if hasattr(visual, "trunk"):
        return visual.head(visual.trunk.forward_head(features))
    return visual._pool(features)[0] @ visual.proj


def test_a_patch_in_the_joint_space_is_the_embedding_of_that_patch_everywhere(
    encoder: OpenClip, draw: Callable[..., Image.Image]
) -> None:
    item = ImageItem("x", draw(4))
    tokens = rows_of(encoder, [item], ("tokens",))["tokens"][0]
    with torch.inference_mode():
        features = encoder.image.run(encoder.transform(item.picture)[None], ()).features
        if encoder.family == "resnet":  # type: ignore[attr-defined]
            expected = [one_key(encoder.model.visual.attnpool, features, place) for place in range(len(tokens))]
        else:
            last = encoder.family == "swin"  # type: ignore[attr-defined]
            axes = (1, 2) if last else (2, 3) if features.ndim == 4 else (1,)
            places = features.shape[axes[0] : axes[-1] + 1].numel() - len(tokens)
            flat = features.flatten(axes[0], axes[-1]).movedim(axes[0], 0)[places:]
            same = [patch.unsqueeze(axes[0]) for patch in flat]
            same = [patch.unsqueeze(axes[-1]) if len(axes) > 1 else patch for patch in same]
            expected = [embedding_of(encoder, patch.expand_as(features))[0] for patch in same]
    torch.testing.assert_close(tokens, torch.stack(expected), **CLOSE)
    assert (tokens - tokens[0]).abs().max() > 1e-4


def one_key(pool: Any, features: torch.Tensor, place: int) -> torch.Tensor:
    """CLIP's attention pool with every key but one masked."""
    x = features.flatten(2).permute(2, 0, 1)
    x = torch.cat([x.mean(dim=0, keepdim=True), x]) + pool.positional_embedding[:, None]
    out, _ = F.multi_head_attention_forward(
        x[:1], x, x, x.shape[-1], pool.num_heads, None,
        torch.cat([pool.q_proj.bias, pool.k_proj.bias, pool.v_proj.bias]), None, None, False, 0.0,
        pool.c_proj.weight, pool.c_proj.bias, training=False, need_weights=False,
        attn_mask=(torch.arange(len(x)) != place + 1)[None], use_separate_proj_weight=True,
        q_proj_weight=pool.q_proj.weight, k_proj_weight=pool.k_proj.weight, v_proj_weight=pool.v_proj.weight,
    )  # fmt: skip
    return out[0, 0]


def test_text_outputs_equal_the_librarys(encoder: OpenClip) -> None:
    items = [TextItem(text, text) for text in TEXTS]
    ids = encoder.tokenizer(TEXTS)
    lengths = [len(encoder.tokenizer.encode(text)) + 2 for text in TEXTS]
    with torch.inference_mode():
        states = encoder.model.forward_intermediates(text=ids, normalize=False)
        inner = getattr(encoder.model, "text", encoder.model)
        start = inner.token_embedding(ids) + inner.positional_embedding[: ids.shape[1]]
    found = rows_of(encoder, items, tuple(encoder.outputs("text")))
    torch.testing.assert_close(found["pooled"], states["text_features"], **CLOSE)
    for layer, state in enumerate([start, *states["text_intermediates"]]):
        for row, length in enumerate(lengths):
            real = state[row, :length]
            torch.testing.assert_close(found[f"layer_{layer:02d}.mean"][row], real.mean(0), **CLOSE)
            torch.testing.assert_close(found[f"layer_{layer:02d}.last"][row], real[-1], **CLOSE)


def test_constants_and_sides(encoder: OpenClip) -> None:
    assert encoder.constants.get("logit_bias") == (-10 if encoder.family == "siglip" else None)  # type: ignore[attr-defined]
    image, text = encoder.identity("image"), encoder.identity("text")
    assert image["weights"] != text["weights"]
    assert image["kernels"] == KERNELS.get(encoder.family, "default")  # type: ignore[attr-defined]


KERNELS = dict.fromkeys(["siglip", "pe", "eva", "mean"], "attention fused") | {"swin": "attention plain"}
