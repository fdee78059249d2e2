from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from PIL import Image

from vlpipe.extract.contracts import ImageItem, TextItem
from vlpipe.extract.encoders.open_clip import OpenClip, OpenClipConfig
from vlpipe.extract.load import load_encoder
from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError

CLOSE = {"rtol": 0, "atol": 1e-5}
TEXTS = ["a dog", "two red cats on a mat, in the rain", ""]


@pytest.fixture(scope="module")
def encoder(clip_config: Path, clip_checkpoint: Path) -> OpenClip:
    return OpenClip(f"{clip_config}@{clip_checkpoint}", OpenClipConfig(device="cpu"))


@pytest.fixture(scope="module")
def direct(clip_config: Path, clip_checkpoint: Path) -> Any:
    """The library's own model with the same weights."""
    model = open_clip.CLIP(**json.loads(clip_config.read_text()))
    open_clip.load_checkpoint(model, str(clip_checkpoint))
    return model.eval()


def encoded(encoder: OpenClip, items: list[Any], outputs: tuple[str, ...]) -> dict[str, torch.Tensor]:
    return encoder.encode(encoder.collate([encoder.prepare(item) for item in items]), outputs)


def test_image_outputs_equal_a_direct_call(
    encoder: OpenClip, direct: Any, draw: Callable[..., Image.Image]
) -> None:
    pictures = [draw(seed, size) for seed, size in enumerate([(90, 40), (32, 32), (64, 128)])]
    found = encoded(encoder, [ImageItem(str(i), p) for i, p in enumerate(pictures)], ("pooled", "tokens"))
    transform = open_clip.image_transform(32, is_train=False)
    pixels = torch.stack([transform(p) for p in pictures])
    with torch.inference_mode():
        pooled = direct.encode_image(pixels)
        direct.visual.output_tokens = True
        again, tokens = direct.visual(pixels)
        direct.visual.output_tokens = False
        joint = tokens @ direct.visual.proj
    assert torch.equal(pooled, again)
    torch.testing.assert_close(found["pooled"], pooled, **CLOSE)
    torch.testing.assert_close(found["tokens"], joint, **CLOSE)
    assert encoder.outputs("image")["tokens"].shape == (16, 16) == joint.shape[1:]
    alone = encoded(encoder, [ImageItem("x", pictures[0])], ("pooled",))["pooled"]
    torch.testing.assert_close(alone[0], pooled[0], **CLOSE)


def test_text_rows_equal_a_direct_call(encoder: OpenClip, direct: Any) -> None:
    found = encoded(encoder, [TextItem(str(i), text) for i, text in enumerate(TEXTS)], ("pooled",))["pooled"]
    with torch.inference_mode():
        expected = direct.encode_text(open_clip.get_tokenizer("ViT-B-32")(TEXTS))
    torch.testing.assert_close(found, expected, **CLOSE)
    assert encoder.outputs("text")["pooled"].shape == expected.shape[1:]
    assert not torch.allclose(found.norm(dim=-1), torch.ones(3))


def test_constants_are_the_models(encoder: OpenClip, direct: Any) -> None:
    assert encoder.constants == {"logit_scale": pytest.approx(direct.logit_scale.exp().item())}


@pytest.mark.parametrize(("words", "cut"), [(73, False), (74, False), (75, False), (76, True), (200, True)])
def test_a_text_is_right_up_to_77_tokens_and_then_cut(words: int, cut: bool, encoder: OpenClip) -> None:
    prepared = encoder.prepare(TextItem("x", " ".join(["dog"] * words)))
    ids = prepared.tensors["text"].tolist()
    start, end = 49406, 49407
    assert prepared.cut == (cut,)
    assert ids[0] == start
    assert ids.count(start) == ids.count(end) == 1
    assert ids.index(end) == min(words + 1, 76)


def test_a_hugging_face_tokenizer_inside_is_cut_and_flagged_too(
    bert: Path, tmp_path: Path, clip_config: Path
) -> None:
    config = json.loads(clip_config.read_text())
    config["text_cfg"] |= {"context_length": 8, "hf_tokenizer_name": str(bert), "vocab_size": 64}
    path = tmp_path / "wordpiece.json"
    path.write_text(json.dumps(config))
    encoder = OpenClip(str(path), OpenClipConfig(device="cpu", random_init=True))
    flags = [encoder.prepare(TextItem("x", " ".join(["dog"] * words))).cut for words in (5, 6, 7)]
    assert flags == [(False,), (False,), (True,)]
    assert encoder.prepare(TextItem("x", "dog " * 20)).tensors["text"].tolist()[-1] == 3  # [SEP]


@pytest.mark.parametrize("value", [0, 255])
def test_preprocessing_comes_from_the_configuration(value: int, clip_config: Path, tmp_path: Path) -> None:
    whole = {
        "model_cfg": json.loads(clip_config.read_text()),
        "preprocess_cfg": {
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
            "interpolation": "bilinear",
            "resize_mode": "squash",
        },
    }
    path = tmp_path / "half.json"
    path.write_text(json.dumps(whole))
    encoder = OpenClip(str(path), OpenClipConfig(device="cpu", random_init=True))
    picture = Image.new("RGB", (50, 20), (value,) * 3)
    pixels = encoder.prepare(ImageItem("x", picture)).tensors["image"]
    torch.testing.assert_close(pixels, torch.full((3, 32, 32), value / 127.5 - 1))
    assert '"resize_mode":"squash"' in encoder.identity("image")["preprocessing"]


def test_random_init_is_seeded_and_only_on_request(clip_config: Path) -> None:
    state = torch.random.get_rng_state()
    weights = [
        OpenClip(str(clip_config), OpenClipConfig(device="cpu", random_init=True, seed=seed)).identity("image")[
            "weights"
        ]
        for seed in (1, 1, 2)
    ]
    assert weights[0] == weights[1] != weights[2]
    assert torch.equal(torch.random.get_rng_state(), state)
    with pytest.raises(VlpipeError, match="names no weights; add @CHECKPOINT"):
        load_encoder(f"open_clip:{clip_config}", {})
    with pytest.raises(VlpipeError, match=r"names no weights.*laion2b_s34b_b88k"):
        load_encoder("open_clip:ViT-B-16", {})


def test_two_files_of_one_name_do_not_mix(clip_config: Path, tmp_path: Path) -> None:
    config = json.loads(clip_config.read_text())
    path = tmp_path / clip_config.name
    path.write_text(json.dumps(config | {"embed_dim": 24}))
    settings = OpenClipConfig(device="cpu", random_init=True)
    widths = [
        OpenClip(str(p), settings).outputs("image")["pooled"].shape for p in (clip_config, path, clip_config)
    ]
    assert widths == [(16,), (24,), (16,)]


def test_activation_is_part_of_the_identity(clip_config: Path, clip_checkpoint: Path, encoder: OpenClip) -> None:
    spec = f"{clip_config}@{clip_checkpoint}"
    quick = OpenClip(spec, OpenClipConfig(device="cpu", quick_gelu=True))
    plain, other = encoder.identity("text"), quick.identity("text")
    assert {name for name in plain if plain[name] != other[name]} == {"activation"}
    items = [TextItem("x", "a dog")]
    assert not torch.allclose(
        encoded(encoder, items, ("pooled",))["pooled"], encoded(quick, items, ("pooled",))["pooled"]
    )


def _tag(monkeypatch: pytest.MonkeyPatch, model: str, quick: bool, checkpoint: Path) -> None:
    """A tag of the library whose weights are already here."""
    tags = {"here": {"quick_gelu": quick, "file": str(checkpoint)}}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, model, tags)
    monkeypatch.setattr(open_clip.factory, "download_pretrained", lambda cfg, **_: cfg["file"])


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("configured", [True, False])
def test_a_tag_decides_the_activation_of_its_weights(
    quick: bool,
    configured: bool,
    tmp_path: Path,
    clip_config: Path,
    clip_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"tiny-{quick}-{configured}"
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(json.loads(clip_config.read_text()) | {"quick_gelu": configured}))
    open_clip.add_model_config(path)
    _tag(monkeypatch, name, quick, clip_checkpoint)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = OpenClip(f"{name}@here", OpenClipConfig(device="cpu"))
    assert found.identity("image")["activation"] == ("quick_gelu" if quick else "gelu")
    kinds = {type(m).__name__ for m in found.model.modules()}
    assert ("QuickGELU" in kinds, "GELU" in kinds) == (quick, not quick)
    with pytest.raises(UsageError, match="was trained with"):
        OpenClip(f"{name}@here", OpenClipConfig(device="cpu", quick_gelu=not quick))


def test_a_checkpoint_file_of_unclear_activation_is_noted(
    clip_config: Path, clip_checkpoint: Path, tmp_path: Path
) -> None:
    for name in ("both", "both-quickgelu"):
        path = tmp_path / f"{name}.json"
        path.write_text(clip_config.read_text())
        open_clip.add_model_config(path)
    spec = f"both@{clip_checkpoint}"
    assert "quick_gelu=true" in OpenClip(spec, OpenClipConfig(device="cpu")).notes[0]
    assert not OpenClip(spec, OpenClipConfig(device="cpu", quick_gelu=False)).notes


def test_a_local_folder_is_a_model(
    clip_config: Path, clip_checkpoint: Path, tmp_path: Path, encoder: OpenClip
) -> None:
    config = {"model_cfg": json.loads(clip_config.read_text()), "preprocess_cfg": {}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    shutil.copy(clip_checkpoint, tmp_path / "open_clip_model.safetensors")
    found = OpenClip(str(tmp_path), OpenClipConfig(device="cpu"))
    for side in ("image", "text"):
        assert found.identity(side) == encoder.identity(side)
    (tmp_path / "open_clip_model.safetensors").unlink()
    with pytest.raises(VlpipeError, match="cannot be loaded"):
        OpenClip(str(tmp_path), OpenClipConfig(device="cpu"))


def test_reload_is_to_the_bit(
    clip_config: Path, clip_checkpoint: Path, encoder: OpenClip, draw: Callable[..., Image.Image]
) -> None:
    again = OpenClip(f"{clip_config}@{clip_checkpoint}", OpenClipConfig(device="cpu"))
    items = [ImageItem(str(seed), draw(seed)) for seed in range(3)]
    for name, rows in encoded(encoder, items, ("pooled", "tokens")).items():
        assert torch.equal(rows, encoded(again, items, ("pooled", "tokens"))[name])


def test_sides_have_their_own_weights_digest(
    clip_config: Path, clip_checkpoint: Path, tmp_path: Path, encoder: OpenClip
) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(clip_checkpoint)
    state["text_projection"] = state["text_projection"] + 1
    save_file(state, tmp_path / "other.safetensors")
    other = OpenClip(f"{clip_config}@{tmp_path / 'other.safetensors'}", OpenClipConfig(device="cpu"))
    assert other.identity("image") == encoder.identity("image")
    assert other.identity("text")["weights"] != encoder.identity("text")["weights"]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_reduced_precision_is_near_and_named(
    precision: str, clip_config: Path, clip_checkpoint: Path, encoder: OpenClip, draw: Callable[..., Image.Image]
) -> None:
    rough = OpenClip(f"{clip_config}@{clip_checkpoint}", OpenClipConfig(device="cpu", precision=precision))
    items = [ImageItem("x", draw(1))]
    for name, rows in encoded(encoder, items, ("pooled", "tokens")).items():
        found = encoded(rough, items, ("pooled", "tokens"))[name]
        assert found.dtype == torch.float32
        assert 0 < (found - rows).abs().max() < 0.1
    different = {k for k, v in encoder.identity("image").items() if rough.identity("image")[k] != v}
    assert different == {"precision"}


def test_towers_have_gradients(encoder: OpenClip, draw: Callable[..., Image.Image]) -> None:
    for side, item in (("image", ImageItem("x", draw(0))), ("text", TextItem("x", "a dog"))):
        batch = encoder.collate([encoder.prepare(item)])
        tower = encoder.tower(side)
        assert tower(batch.tensors).requires_grad
        torch.testing.assert_close(tower(batch.tensors), encoder.encode(batch, ("pooled",))["pooled"], **CLOSE)


@pytest.mark.parametrize(
    ("model", "kind", "says"),
    [
        ("ViT-B-61@openai", UnknownNameError, "did you mean 'ViT-B-16'"),
        ("ViT-B-16@laion2b_s34b_b88", UnknownNameError, "did you mean 'laion2b_s34b_b88k'"),
        ("ViT-B-16@./gone.pt", VlpipeError, "no checkpoint file"),
        ("gone.json", VlpipeError, "cannot be read"),
        ("", UsageError, "needs a model"),
    ],
)
def test_what_does_not_exist_is_one_line(model: str, kind: type[VlpipeError], says: str) -> None:
    with pytest.raises(kind, match=says) as caught:
        load_encoder(f"open_clip:{model}", {})
    assert "\n" not in str(caught.value)


def test_weights_that_cannot_be_fetched_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(open_clip.factory, "download_pretrained", offline)
    with pytest.raises(VlpipeError, match=r"laion2b_s34b_b79k.*no route to host.*local checkpoint") as caught:
        load_encoder("open_clip:ViT-B-32@laion2b_s34b_b79k", {})
    assert "\n" not in str(caught.value)


def test_a_checkpoint_that_carries_code_does_not_run(clip_config: Path, tmp_path: Path) -> None:
    evil = tmp_path / "evil.pt"
    torch.save({"state_dict": _Evil(tmp_path / "ran")}, evil)
    with pytest.raises(VlpipeError, match="cannot be loaded"):
        load_encoder(f"open_clip:{clip_config}@{evil}", {"device": "cpu"})
    assert not (tmp_path / "ran").exists()


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)
