"""Where an open_clip model comes from: tags, files, folders and the hub, and parts of transformers inside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from vlpipe.extract.contracts import ImageItem, TextItem
from vlpipe.extract.encoders.open_clip import OpenClip, OpenClipConfig
from vlpipe.extract.load import load_encoder
from vlpipe.foundation.errors import VlpipeError

CPU = OpenClipConfig(device="cpu")
RANDOM = OpenClipConfig(device="cpu", random_init=True)
CLOSE = {"rtol": 0, "atol": 1e-5}
OPENAI = {"mean": open_clip.OPENAI_DATASET_MEAN, "std": open_clip.OPENAI_DATASET_STD}
SIGLIP = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bicubic", "resize_mode": "squash"}


def named(
    name: str, config: Path, tags: dict[str, dict[str, Any]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A model of the library's own list, with tags."""
    shutil.copy(config, folder / f"{name}.json")
    open_clip.add_model_config(folder / f"{name}.json")
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, name.lower(), tags)
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, name, tags)
    return name


def test_a_file_is_prepared_as_the_tags_of_its_model_are(
    clip_config: Path, clip_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = named("one-way", clip_config, {"a": SIGLIP, "b": SIGLIP | {"url": "x"}}, tmp_path, monkeypatch)
    encoder = OpenClip(f"{one}@{clip_checkpoint}", CPU)
    white = encoder.prepare(ImageItem("x", Image.new("RGB", (50, 20), (255,) * 3))).tensors["image"]
    torch.testing.assert_close(white, torch.ones(3, 32, 32))
    assert '"resize_mode":"squash"' in encoder.identity("image")["preprocessing"]
    assert not encoder.notes
    two = named("two-ways", clip_config, {"a": SIGLIP, "b": OPENAI}, tmp_path, monkeypatch)
    encoder = OpenClip(f"{two}@{clip_checkpoint}", CPU)
    assert "does not say how pictures are prepared; taken as for @a" in encoder.notes[0]


@pytest.mark.parametrize(
    "model",
    ["ViT-B-32@laion2b_s34b_b79k", "ViT-B-32-quickgelu@openai", "hf-hub:laion/none", "ViT-B-16-SigLIP@webli"],
)
def test_without_a_network_there_is_an_answer_at_once(model: str, no_network: list[float]) -> None:
    with pytest.raises(VlpipeError, match="without a network give a local checkpoint") as caught:
        load_encoder(f"open_clip:{model}", {"device": "cpu"})
    assert no_network == []
    assert "\n" not in str(caught.value)


def whole_folder(folder: Path, config: Path, checkpoint: Path, **more: Any) -> Path:
    folder.mkdir(parents=True)
    settings = json.loads(config.read_text()) | more
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": settings, "preprocess_cfg": SIGLIP}))
    shutil.copy(checkpoint, folder / "open_clip_model.safetensors")
    return folder


def test_a_model_in_the_hubs_local_cache_is_its_folder(
    clip_config: Path,
    clip_checkpoint: Path,
    tmp_path: Path,
    no_network: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = tmp_path / "models--some--clip"
    folder = whole_folder(place / "snapshots" / "abc", clip_config, clip_checkpoint, quick_gelu=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    cached, local = OpenClip("hf-hub:some/clip", CPU), OpenClip(str(folder), CPU)
    for side in cached.sides():
        assert cached.identity(side) == local.identity(side)
    assert cached.identity("image")["activation"] == "quick_gelu"
    assert '"mean":[0.5,0.5,0.5]' in cached.identity("image")["preprocessing"]
    assert no_network == []


def test_a_folder_a_file_or_random_weights_ask_nobody(
    clip_config: Path, clip_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vlpipe.extract.clip_source.hub_answers", lambda: pytest.fail("asked"))
    OpenClip(str(whole_folder(tmp_path / "model", clip_config, clip_checkpoint)), CPU)
    OpenClip(f"{clip_config}@{clip_checkpoint}", CPU)
    OpenClip(str(clip_config), RANDOM)


def written(path: Path, config: Path, **text: Any) -> Path:
    settings = json.loads(config.read_text())
    settings["text_cfg"] |= text
    path.write_text(json.dumps(settings))
    return path


def test_the_identity_of_a_side_is_its_own_and_not_where_parts_lie(
    clip_config: Path, bert: Path, tmp_path: Path
) -> None:
    inner = {"context_length": 8, "vocab_size": 64}
    first, moved, deeper = (
        OpenClip(str(written(tmp_path / f"{number}.json", clip_config, **inner, **text)), RANDOM)
        for number, text in enumerate(
            [
                {"hf_tokenizer_name": str(bert)},
                {"hf_tokenizer_name": str(shutil.copytree(bert, tmp_path / "elsewhere"))},
                {"hf_tokenizer_name": str(bert), "layers": 3},
            ]
        )
    )
    for side in first.sides():
        assert first.identity(side) == moved.identity(side)
    assert first.identity("image") == deeper.identity("image")
    changed = {k for k, v in first.identity("text").items() if deeper.identity("text")[k] != v}
    assert changed == {"weights", "architecture"}


@pytest.mark.parametrize("strip", [False, True])
def test_real_tokens_of_a_tokenizer_of_transformers(
    strip: bool, clip_config: Path, bert: Path, tmp_path: Path
) -> None:
    text = {"context_length": 8, "vocab_size": 64, "hf_tokenizer_name": str(bert), "no_causal_mask": True}
    more = {"tokenizer_kwargs": {"strip_sep_token": True}} if strip else {}
    encoder = OpenClip(str(written(tmp_path / "inner.json", clip_config, **text, **more)), RANDOM)
    for words, length, cut in ((0, 2, False), (3, 5, False), (6, 8, False), (7, 8, True), (20, 8, True)):
        prepared = encoder.prepare(TextItem("x", " ".join(["dog"] * words)))
        ids = prepared.tensors["text"].tolist()
        assert (int(prepared.tensors["length"]), prepared.cut) == (length - strip, (cut,))
        assert ids[length - 1] == (0 if strip else 3)  # [SEP], or what stands in its place


@pytest.fixture(scope="module")
def lit(models: Path, bert: Path) -> OpenClip:
    """A text side that is a whole BERT of transformers, with a mean pooler and a projection of two layers."""
    text = {"hf_model_name": str(bert), "hf_tokenizer_name": str(bert), "hf_pooler_type": "mean_pooler",
            "hf_proj_type": "mlp", "context_length": 8}  # fmt: skip
    vision = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8}
    path = models / "lit.json"
    path.write_text(json.dumps({"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}))
    return OpenClip(str(path), RANDOM)


def test_a_text_side_of_transformers(lit: OpenClip) -> None:
    texts = ["a dog", "two red cats on the mat", ""]
    items = [TextItem(text, text) for text in texts]
    outputs = tuple(lit.outputs("text"))
    assert outputs == ("pooled", *(f"layer_{k:02d}.{pooling}" for k in range(3) for pooling in ("mean", "last")))
    found = lit.encode(lit.collate([lit.prepare(item) for item in items]), outputs)
    alone = lit.encode(lit.collate([lit.prepare(items[0])]), outputs)
    ids = lit.tokenizer(texts)
    with torch.inference_mode():
        pooled = lit.model.encode_text(ids)
        mask = (ids != 0).long()
        states = lit.model.text.transformer(ids, attention_mask=mask, output_hidden_states=True).hidden_states
    torch.testing.assert_close(found["pooled"], pooled, **CLOSE)
    for layer, state in enumerate(states):
        for row, length in enumerate(mask.sum(1).tolist()):
            mean = state[row, :length].mean(0)
            torch.testing.assert_close(found[f"layer_{layer:02d}.mean"][row], mean, **CLOSE)
            torch.testing.assert_close(found[f"layer_{layer:02d}.last"][row], state[row, length - 1], **CLOSE)
    for name in outputs:
        torch.testing.assert_close(alone[name][0], found[name][0], **CLOSE)


def test_a_text_side_of_transformers_is_told_apart_by_its_configuration(
    lit: OpenClip, bert: Path, models: Path, tmp_path: Path
) -> None:
    def other(name: str, **more: Any) -> dict[str, str]:
        folder = shutil.copytree(bert, tmp_path / name)
        config = json.loads((folder / "config.json").read_text()) | more
        (folder / "config.json").write_text(json.dumps(config))
        settings = json.loads((models / "lit.json").read_text())
        settings["text_cfg"] |= {"hf_model_name": str(folder), "hf_tokenizer_name": str(folder)}
        (tmp_path / f"{name}.json").write_text(json.dumps(settings))
        return dict(OpenClip(str(tmp_path / f"{name}.json"), RANDOM).identity("text"))

    first = lit.identity("text")
    assert other("moved") == first
    changed = other("changed", hidden_act="relu")
    assert {k for k in first if first[k] != changed[k]} == {"architecture"}


def test_checkpoints_of_authors_and_of_training_are_read(
    clip_config: Path, clip_checkpoint: Path, tmp_path: Path, draw: Callable[..., Image.Image]
) -> None:
    from safetensors.torch import load_file

    state = load_file(clip_checkpoint)
    torch.save({"state_dict": {f"module.{n}": t for n, t in state.items()}, "epoch": 1}, tmp_path / "epoch_1.pt")
    first = OpenClip(f"{clip_config}@{clip_checkpoint}", CPU)
    again = OpenClip(f"{clip_config}@{tmp_path / 'epoch_1.pt'}", CPU)
    for side in first.sides():
        assert first.identity(side) == again.identity(side)
    save_file({n: t for n, t in state.items() if n != "visual.proj"}, tmp_path / "less.safetensors")
    with pytest.raises(VlpipeError, match=r"visual\.proj"):
        OpenClip(f"{clip_config}@{tmp_path / 'less.safetensors'}", CPU)
