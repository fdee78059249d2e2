from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vlpipe.backbones.live import Places
from vlpipe.backbones.settings import LoopConfig
from vlpipe.backbones.train import train
from vlpipe.extract.job import Job
from vlpipe.extract.load import load_encoder
from vlpipe.extract.run import extract
from vlpipe.foundation.config import resolve
from vlpipe.heads.opening import Opener
from vlpipe.heads.sweep import Request, run_sweep
from vlpipe.manifests.datasets.mad import VALUES
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.writer import write_manifest

SPEC = "bundled:mad-clip"
WORDS = [word for values in VALUES.values() for word in values]
SHORT: dict[str, Any] = {
    "steps": 4,
    "batch_size": 6,
    "save_every": 2,
    "lr": 0.01,
    "text_lr": 0.001,
    "warmup": 0.25,
    "objective": {"hidden": 8},
    "encoder": {"device": "cpu"},
}


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class World:
    """A manifest whose pictures are gone, its cached features, and finished runs on them."""

    manifest: Path
    cache: Path
    runs: Path
    sae: str = ""

    @property
    def images(self) -> str:
        """Cached image rows, read by the autoencoder's run."""
        return f"image={SPEC}#pooled::{self.sae}"

    def extract(self, spec: str, side: Any, output: str = "pooled", name: str = "") -> None:
        """One output of one side, in float32, on the CPU."""
        settings: dict[str, Any] = {"width": 18} if spec == "random_features" else {"device": "cpu"}
        manifest = Manifest.open(self.manifest)
        encoder = load_encoder(spec, settings)
        extract(Job(manifest, encoder, name or spec, side, (output,), self.cache, "float32", settings=settings))

    def head(self, kind: str, *sources: str, **settings: Any) -> str:
        """A finished run's id."""
        request = Request(kind, Opener(self.manifest, self.cache, self.runs), self.runs, sources)
        (member,) = run_sweep(request, settings, {})
        assert member.outcome is not None
        return member.outcome.run.id

    def live(self, out: Path, spec: str = SPEC, source: str | None = None, **changed: Any) -> dict[str, Any]:
        """`train-backbone tevi`."""
        config = resolve(LoopConfig, SHORT, {"text_lr": 1e-3}, changed)
        places = Places((source or self.images,), self.cache, self.runs)
        return train("tevi", self.manifest, spec, out, config, places)


def _digits(folder: Path, manifest: Path) -> None:
    """Noise in the colours of digits, with two captions each."""
    rng = np.random.default_rng(0)
    images, texts = [], []
    for n in range(44):
        Image.fromarray(rng.integers(0, 256, (28, 28, 3), np.uint8)).save(folder / f"{n}.png")
        images.append({"image_id": f"i{n}", "path": f"{n}.png", "split": ("train", "train", "val", "test")[n % 4]})
        for k in range(2):
            text = "-".join(rng.choice(values) for values in list(VALUES.values())[:4])
            texts.append({"text_id": f"t{n}.{k}", "text": text, "image_id": f"i{n}", "role": "caption"})
    write_manifest(manifest, name="m", source="s", licence="l", image_root=folder, images=images, texts=texts)


@pytest.fixture(scope="session")
def _made(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("live")
    found = World(folder / "mad", folder / "cache", folder / "runs")
    _digits(folder, found.manifest)
    for spec in (SPEC, "random_features"):
        for side in ("image", "text"):
            found.extract(spec, side)
    for picture in folder.glob("*.png"):
        picture.unlink()
    sae = found.head("sae", f"image={SPEC}", latents=26, k=4, epochs=1, batch_size=16)
    return replace(found, sae=sae)


@pytest.fixture
def world(_made: World, tmp_path: Path) -> World:
    """Of one's own to write in."""
    for name in ("cache", "runs"):
        shutil.copytree(getattr(_made, name), tmp_path / name)
    return replace(_made, cache=tmp_path / "cache", runs=tmp_path / "runs")


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text model of width 24 that knows MAD's words, without its pooler, as its library saves it."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("models") / "bert"
    folder.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "-", *dict.fromkeys(WORDS)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    torch.manual_seed(2)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertModel(
        BertConfig(vocab_size=len(vocabulary), max_position_embeddings=24, **sizes), add_pooling_layer=False
    )
    model.save_pretrained(folder)
    BertTokenizerFast.from_pretrained(folder).save_pretrained(folder)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small CLIP of open_clip as MODEL@CHECKPOINT, as wide as the bundled one."""
    import open_clip
    from safetensors.torch import save_file

    settings = {
        "embed_dim": 18,
        "quick_gelu": True,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
        "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    }
    folder = tmp_path_factory.mktemp("clip")
    whole = {"model_cfg": settings, "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}}
    (folder / "clip.json").write_text(json.dumps(whole), encoding="utf-8")
    torch.manual_seed(5)
    model = open_clip.CLIP(**settings)
    save_file({n: t.contiguous() for n, t in model.state_dict().items()}, folder / "clip.safetensors")
    return f"{folder / 'clip.json'}@{folder / 'clip.safetensors'}"
