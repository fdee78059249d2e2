"""An encoder that is saved and loaded again is the same, by its own library too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vlpipe.extract.contracts import Savable, TextItem
from vlpipe.extract.load import load_encoder

CPU = {"device": "cpu"}
TEXTS = ["7-red-large", "0-blue", "3-green-noswelling-fracture"]


def moved(encoder: Any, side: Any = "text") -> None:
    """Other weights in one tower."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in encoder.tower(side).parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


def rows(encoder: Any, output: str) -> Tensor:
    items = [encoder.prepare(TextItem(text, text)) for text in TEXTS]
    found: Tensor = encoder.encode(encoder.collate(items), (output,))[output]
    return found


def again(spec: str, folder: Path, output: str, **settings: Any) -> tuple[Any, Any]:
    """An encoder with a moved text tower, and what was saved of it."""
    encoder: Any = load_encoder(spec, CPU | settings)
    assert isinstance(encoder, Savable)
    before, identity = rows(encoder, output), {side: encoder.identity(side) for side in encoder.sides()}
    moved(encoder)
    folder.mkdir()
    encoder.save(folder)
    model, kept = encoder.saved(folder)
    loaded: Any = load_encoder(f"{spec.partition(':')[0]}:{model}", CPU | kept)
    assert torch.equal(rows(loaded, output), rows(encoder, output))
    assert not torch.allclose(before, rows(loaded, output), atol=1e-3)
    for side in encoder.sides():
        was, now = identity[side], loaded.identity(side)
        assert {name for name in was if was[name] != now.get(name)} == ({"weights"} if side == "text" else set())
        assert was.keys() == now.keys()
    assert loaded.constants == pytest.approx(dict(encoder.constants))
    return encoder, loaded


def test_bundled(tmp_path: Path) -> None:
    encoder, _ = again("bundled:mad-clip", tmp_path / "saved", "pooled")
    tensors = load_file(tmp_path / "saved" / "weights.safetensors")
    own = encoder.towers["text"].state_dict()
    assert all(torch.equal(tensors[f"text.{name}"], tensor) for name, tensor in own.items())
    encoder.save(tmp_path / "saved", logit_scale=50.0)
    loaded = load_encoder(f"bundled:{encoder.saved(tmp_path / 'saved')[0]}", CPU)
    assert loaded.constants["logit_scale"] == pytest.approx(50)


def test_hf_texts_by_the_library_itself(tmp_path: Path, bert: Path) -> None:
    from transformers import AutoModel

    encoder, loaded = again(f"hf:{bert}", tmp_path / "saved", "mean", max_length=10, prompt="small ")
    assert "pooler" not in loaded.outputs("text")  # random weights did not become real ones
    assert loaded.texts.tokens.limit == 10
    model, info = AutoModel.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert all(name.startswith("pooler") for name in info["missing_keys"])
    state = model.state_dict()
    for name, tensor in encoder.model.state_dict().items():
        assert name.startswith("pooler") or torch.equal(state[name], tensor)
    assert (tmp_path / "saved" / "sentence_bert_config.json").is_file()


def test_hf_encoder_of_a_model_with_a_decoder(tmp_path: Path, bert: Path) -> None:
    """The encoder alone is read and trained; the checkpoint stays whole."""
    from transformers import AutoTokenizer, T5Config, T5Model

    folder = tmp_path / "t5"
    torch.manual_seed(0)
    T5Model(T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)).save_pretrained(
        folder
    )
    AutoTokenizer.from_pretrained(bert).save_pretrained(folder)
    encoder, _ = again(f"hf:{folder}", tmp_path / "saved", "mean", max_length=20)
    kept = T5Model.from_pretrained(tmp_path / "saved").state_dict()
    start = T5Model.from_pretrained(folder).state_dict()
    shared = encoder.model.state_dict()
    for name, tensor in start.items():
        if name.startswith("decoder.block"):
            assert torch.equal(kept[name], tensor)
        elif name.startswith("encoder."):
            assert torch.equal(kept[name], shared[name.removeprefix("encoder.")])


def test_hf_of_two_towers_and_a_logit_scale(tmp_path: Path) -> None:
    from transformers import CLIPConfig, CLIPModel

    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config={**small, "vocab_size": 32}, vision_config={**small, "image_size": 8, "patch_size": 4}
    )
    torch.manual_seed(0)
    CLIPModel(config).save_pretrained(tmp_path / "clip")
    encoder: Any = load_encoder(f"hf:{tmp_path / 'clip'}", CPU)
    assert encoder.two
    (tmp_path / "saved").mkdir()
    encoder.save(tmp_path / "saved", logit_scale=30.0)
    loaded: Any = load_encoder(f"hf:{tmp_path / 'saved'}", CPU)
    assert loaded.constants["logit_scale"] == pytest.approx(30)
    assert loaded.weights == encoder.weights


def test_open_clip_by_the_library_itself(tmp_path: Path, clip: str) -> None:
    encoder, loaded = again(f"open_clip:{clip}", tmp_path / "saved", "pooled", prompt="a photo of ")
    assert loaded.activation == "quick_gelu"
    model = open_clip.create_model(f"local-dir:{tmp_path / 'saved'}", weights_only=True).eval()
    tokens = torch.stack([encoder.prepare(TextItem(text, text)).tensors["text"] for text in TEXTS])
    with torch.inference_mode():
        assert torch.equal(model.encode_text(tokens), rows(encoder, "pooled"))
    encoder.save(tmp_path / "saved", logit_scale=50.0)
    assert load_encoder(f"open_clip:{tmp_path / 'saved'}", CPU).constants["logit_scale"] == pytest.approx(50)


def test_a_tower_of_open_clip_holds_its_own_side_only(clip: str) -> None:
    encoder: Any = load_encoder(f"open_clip:{clip}", CPU)
    image, text = (dict(encoder.tower(side).named_parameters()) for side in ("image", "text"))
    assert all(name.startswith("visual.") for name in image)
    assert not any(name.startswith(("visual.", "logit_")) for name in text)
    whole = dict(encoder.model.named_parameters())
    assert image.keys() | text.keys() | {"logit_scale"} == whole.keys()
    assert all(whole[name] is parameter for name, parameter in (image | text).items())
