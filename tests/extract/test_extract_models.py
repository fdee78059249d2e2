"""The command with real architectures: layers, refusals, several encoders, real photos."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vlpipe.cache_store.layout import store_path
from vlpipe.cache_store.reader import open_features
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.writer import write_manifest
from vlpipe.pipeline import run

TEXTS = ["a dog", "the red bird on a hat", "a dog", "cat " * 30]


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory, draw: Callable[..., Image.Image]) -> Manifest:
    root = tmp_path_factory.mktemp("mini")
    for number in range(5):
        draw(number, (80 + 7 * number, 60)).save(root / f"{number}.png")
    images = [{"image_id": f"i{n}", "path": f"{n}.png", "split": "train"} for n in range(5)]
    texts = [{"text_id": f"t{n}", "text": t, "role": "caption", "split": "train"} for n, t in enumerate(TEXTS)]
    return write_manifest(
        root / "m", name="mini", source="made", licence="none", image_root=root, images=images, texts=texts
    )


def command(mini: Manifest, cache: Path, *more: str) -> list[str]:
    return ["extract", "--manifest", str(mini.folder), "--cache", str(cache), *more]


def test_two_encoders_layers_and_outputs_in_one_command(
    mini: Manifest, dinov2: Path, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["--encoder", f"hf:{dinov2}", "--encoder", f"hf:{bert}", "--dtype", "float32", "--json"]
    outputs = ["--output", "cls", "--output", "mean", "--output", "layer_-1.mean", "--output", "layer_0.mean"]
    assert run(command(mini, tmp_path, *both, *outputs)) == 0
    image, text = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert image["outputs"] == ["cls", "layer_03.mean", "layer_00.mean"]
    assert text["outputs"] == ["cls", "mean", "layer_02.mean", "layer_00.mean"]
    assert (text["ok"], text["cut"]) == (3, 1)
    rows = [
        open_features(Path(text["store"]), name).rows(["t0", "t1", "t2"]) for name in ("mean", "layer_02.mean")
    ]
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)  # BERT's last layer is its last state
    np.testing.assert_array_equal(rows[0][0], rows[0][2])


@pytest.mark.parametrize("layer", [4, -5, 99])
def test_a_layer_that_is_not_there_is_a_usage_error(
    layer: int, mini: Manifest, dinov2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = command(mini, tmp_path, "--encoder", f"hf:{dinov2}", "--output", f"layer_{layer}.cls")
    assert run(line) == 2
    assert "layers 0 (embeddings) to 3, or -1 to -4" in capsys.readouterr().err


def test_other_weights_precision_or_preprocessing_exit_4_with_the_field(
    mini: Manifest, dinov2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(dinov2, tmp_path / "model")
    line = command(mini, tmp_path / "cache", "--encoder", f"hf:{folder}")
    assert run(line) == 0
    assert run([*line, "--set", 'precision="bfloat16"']) == 4
    assert "precision: cached 'float32', asked 'bfloat16'" in capsys.readouterr().err
    assert run([*line, "--set", 'attention="eager"']) == 4
    assert "kernels" in capsys.readouterr().err
    rules = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps(rules | {"resample": 2}))
    assert run(line) == 4
    assert "preprocessing" in capsys.readouterr().err
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    state = load_file(folder / "model.safetensors")
    state["layernorm.bias"] = state["layernorm.bias"] + 1
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    assert run(line) == 4
    assert "weights" in capsys.readouterr().err
    assert run([*line, "--as", "shifted"]) == 0


@pytest.mark.parametrize("batch", [1, 7])
def test_the_batch_size_is_not_part_of_a_row(
    batch: int, mini: Manifest, clip_config: Path, clip_checkpoint: Path, tmp_path: Path
) -> None:
    spec = f"open_clip:{clip_config}@{clip_checkpoint}"
    found = {}
    for size in (batch, 64):
        cache = tmp_path / str(size)
        line = command(mini, cache, "--encoder", spec, "--dtype", "float32", "--batch-size", str(size))
        assert run(line) == 0
        for side in ("image", "text"):
            store = store_path(cache, mini.digest, spec, side)
            rows = open_features(store, "pooled")
            found[size, side] = rows.rows(list(rows.ids))
            assert rows.constants["logit_scale"] > 1 or rows.constants["logit_scale"] == pytest.approx(
                14.28, abs=0.1
            )
    for side in ("image", "text"):
        np.testing.assert_allclose(found[batch, side], found[64, side], rtol=0, atol=1e-5)


def test_real_models_equal_a_plain_script(real_models: Path, shared: Path, tmp_path: Path) -> None:
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    paths = sorted((shared / "data" / "flickr8k").rglob("*.jpg"))[:6]
    texts = ["two dogs run on the grass", "a man in a red hat", "children play"]
    found = write_manifest(
        tmp_path / "m", name="few", source="s", licence="l", image_root=shared,
        images=[{"image_id": p.name, "path": str(p.relative_to(shared))} for p in paths],
        texts=[{"text_id": t, "text": t, "role": "caption"} for t in texts],
    )  # fmt: skip
    both = ["--encoder", f"hf:{real_models}/dinov2-small", "--encoder", f"hf:{real_models}/all-MiniLM-L6-v2"]
    assert run(command(found, tmp_path, *both, "--dtype", "float32")) == 0
    with torch.inference_mode():
        folder = real_models / "dinov2-small"
        pictures = [Image.open(path).convert("RGB") for path in paths]
        pixels = AutoImageProcessor.from_pretrained(folder)(pictures, return_tensors="pt")["pixel_values"]
        images = AutoModel.from_pretrained(folder).eval()(pixels).last_hidden_state[:, 0]
        folder = real_models / "all-MiniLM-L6-v2"
        tokens = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
        states = AutoModel.from_pretrained(folder).eval()(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None]
        means = (states * mask).sum(1) / mask.sum(1)
    image = open_features(store_path(tmp_path, found.digest, both[1], "image"), "cls").rows(
        [p.name for p in paths]
    )
    text = open_features(store_path(tmp_path, found.digest, both[3], "text"), "mean").rows(texts)
    np.testing.assert_allclose(image, images.numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(text, means.numpy(), rtol=0, atol=1e-5)
