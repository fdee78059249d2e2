"""Towers of every kind that open_clip builds, as small random models: shapes, batch mates, evaluation mode."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from vlpipe.extract.contracts import ImageItem, TextItem
from vlpipe.extract.encoders.open_clip import OpenClip, OpenClipConfig

TINY_TEXT = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
FAMILIES = {
    "resnet": {"vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8}, "text_cfg": TINY_TEXT},
    "average": {
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8,
                       "pool_type": "avg", "final_ln_after_pool": True},
        "text_cfg": TINY_TEXT,
    },
    "coca": {
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8,
                       "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True},
        "text_cfg": TINY_TEXT | {"embed_cls": True, "output_tokens": True},
        "multimodal_cfg": TINY_TEXT | {"attn_pooler_heads": 2},
        "custom_text": True,
    },
    "siglip": {
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": {"image_size": 32, "timm_model_name": "test_vit", "timm_pool": "token",
                       "timm_proj": "linear"},
        "text_cfg": TINY_TEXT | {"no_causal_mask": True, "pool_type": "last"},
    },
}  # fmt: skip


def rows_of(encoder: OpenClip, items: list[Any], outputs: tuple[str, ...]) -> dict[str, torch.Tensor]:
    return encoder.encode(encoder.collate([encoder.prepare(item) for item in items]), outputs)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_other_towers_give_what_they_say(family: str, tmp_path: Path, draw: Callable[..., Image.Image]) -> None:
    path = tmp_path / f"{family}.json"
    path.write_text(json.dumps({"embed_dim": 16, **FAMILIES[family]}))
    encoder = OpenClip(str(path), OpenClipConfig(device="cpu", random_init=True))
    assert ("tokens" in encoder.outputs("image")) == (family == "average")
    assert encoder.constants.get("logit_bias") == (-10 if family == "siglip" else None)
    before = {name: tensor.clone() for name, tensor in encoder.model.visual.state_dict().items()}
    encoder.tower("image").train()
    for side, items in {
        "image": [ImageItem(str(seed), draw(seed)) for seed in range(3)],
        "text": [TextItem(text, text) for text in ("a dog", "two red cats on a mat", "")],
    }.items():
        outputs = tuple(encoder.outputs(side))
        together = rows_of(encoder, items, outputs)
        for name, rows in together.items():
            assert rows.shape == (3, *encoder.outputs(side)[name].shape)
            for row, item in zip(rows, items, strict=True):
                torch.testing.assert_close(rows_of(encoder, [item], outputs)[name][0], row, rtol=0, atol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.model.visual.state_dict().items())
