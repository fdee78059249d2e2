"""What a transformers model is told apart by, and what is refused as one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from vlpipe.cache_store.layout import ArraySpec
from vlpipe.extract.contracts import ImageItem
from vlpipe.extract.encoders.hf import Hf, HfConfig
from vlpipe.extract.load import fingerprints, load_encoder
from vlpipe.foundation.errors import VlpipeError


def test_identity_does_not_depend_on_where_the_model_lies_but_on_what_it_is(dinov2: Path, tmp_path: Path) -> None:
    same = shutil.copytree(dinov2, tmp_path / "elsewhere")
    first = Hf(str(dinov2), HfConfig(device="cpu")).identity("image")
    assert Hf(str(same), HfConfig(device="cpu")).identity("image") == first
    assert str(tmp_path) not in str(first)
    rules = json.loads((same / "preprocessor_config.json").read_text())
    (same / "preprocessor_config.json").write_text(json.dumps(rules | {"image_mean": [0.5, 0.5, 0.5]}))
    changed = Hf(str(same), HfConfig(device="cpu")).identity("image")
    assert {field for field in first if first[field] != changed[field]} == {"preprocessing"}
    rough = Hf(str(dinov2), HfConfig(device="cpu", precision="bfloat16")).identity("image")
    assert {field for field in first if first[field] != rough[field]} == {"precision"}


def test_fingerprints_name_output_and_dtype(bert: Path) -> None:
    specs = {"mean": ArraySpec((32,)), "last": ArraySpec((32,), "float32")}
    found = fingerprints(Hf(str(bert), HfConfig(device="cpu")), "text", specs)
    assert found["mean"]["output"] == "mean"
    assert [found[name]["dtype"] for name in ("mean", "last")] == ["float16", "float32"]
    assert found["mean"]["weights"] == found["last"]["weights"]


def test_a_checkpoint_with_tensors_missing_is_refused(dinov2: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(dinov2, tmp_path / "copy")
    state = load_file(folder / "model.safetensors")
    gone = next(name for name in state if "mlp.fc1.weight" in name)
    save_file({k: v for k, v in state.items() if k != gone}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(VlpipeError, match=r"lacks 1 tensors .*mlp\.fc1\.weight"):
        Hf(str(folder), HfConfig(device="cpu"))


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere/at/all"])
def test_a_folder_that_is_not_there_is_one_line(model: str) -> None:
    with pytest.raises(VlpipeError, match="no such folder") as caught:
        load_encoder(f"hf:{model}", {})
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(VlpipeError, match="cannot be loaded from this folder") as caught:
        load_encoder(f"hf:{tmp_path}", {})
    assert "\n" not in str(caught.value)


def test_code_in_a_checkpoint_does_not_run(bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(
            config | {"model_type": "evil", "auto_map": {"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil"}}
        )
    )
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    with pytest.raises(VlpipeError):
        Hf(str(folder), HfConfig(device="cpu"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("value", [0, 255])
def test_each_models_own_mean_and_std(value: int, dinov2: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(dinov2, tmp_path / "copy")
    rules = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(
        json.dumps(rules | {"image_mean": [0.5] * 3, "image_std": [0.5] * 3})
    )
    item = ImageItem("x", Image.new("RGB", (60, 60), (value, value, value)))
    pixels = Hf(str(folder), HfConfig(device="cpu")).prepare(item).tensors["pixel_values"]
    torch.testing.assert_close(pixels, torch.full_like(pixels, value / 127.5 - 1))
