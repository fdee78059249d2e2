"""Small random models of the real architectures, saved as their libraries save them; pictures and a manifest."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vlpipe.manifests.manifest import Manifest

sys.path.insert(0, str(Path(__file__).parent))  # for toys/, which the command line names as `toys.toy:Toy`

WORDS = ["a", "photo", "of", "the", "red", "blue", "dog", "cat", "on", "mat", "and", "runs", "house", "tree"]
WORDS += ["bird", "fish", "hat"]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """No name is resolved; every pause before a retry is listed instead."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    found: list[float] = []
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(time, "sleep", found.append)
    return found


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def _saved(folder: Path, model: object, *parts: object) -> Path:
    for part in (model, *parts):
        part.save_pretrained(folder)  # type: ignore[attr-defined]
    return folder


def _processor(size: int) -> object:
    from transformers import BitImageProcessor

    return BitImageProcessor(
        size={"shortest_edge": size},
        crop_size={"height": size, "width": size},
        resample=3,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    )


@pytest.fixture(scope="session")
def dinov2(models: Path) -> Path:
    """Three layers, width 32, 4 x 4 patches of a 56-pixel picture."""
    from transformers import Dinov2Config, Dinov2Model

    torch.manual_seed(0)
    config = Dinov2Config(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=2, mlp_ratio=2, image_size=56, patch_size=14
    )
    return _saved(models / "dinov2", Dinov2Model(config), _processor(56))


@pytest.fixture(scope="session")
def dinov2_registers(models: Path) -> Path:
    """Two layers, four register tokens, 16 x 16 patches of a 224-pixel picture."""
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

    torch.manual_seed(1)
    config = Dinov2WithRegistersConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2, image_size=224, patch_size=14
    )
    return _saved(models / "registers", Dinov2WithRegistersModel(config), _processor(224))


@pytest.fixture(scope="session")
def bert(models: Path) -> Path:
    """A WordPiece tokenizer and two layers of width 32 that see 16 tokens."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = models / "bert"
    folder.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "."]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    torch.manual_seed(2)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=16,
    )  # fmt: skip
    tokenizer = BertTokenizerFast.from_pretrained(folder)
    return _saved(folder, BertModel(config, add_pooling_layer=False), tokenizer)


def _word_tokenizer(begin: bool) -> object:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    numbers = {word: number for number, word in enumerate(["<s>", "</s>", "<unk>", *WORDS])}
    inner = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    if begin:
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.fixture(scope="session")
def llama(models: Path) -> Path:
    """A decoder whose tokenizer begins every text and has no padding token; it sees 24 tokens."""
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(WORDS) + 3, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=48, max_position_embeddings=24, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return _saved(models / "llama", LlamaModel(config), _word_tokenizer(begin=True))


@pytest.fixture(scope="session")
def gpt2(models: Path) -> Path:
    """A decoder with learned positions, a tokenizer without begin and padding token."""
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(4)
    config = GPT2Config(
        vocab_size=len(WORDS) + 3, n_embd=32, n_layer=2, n_head=2, n_positions=24, bos_token_id=1, eos_token_id=1
    )
    return _saved(models / "gpt2", GPT2Model(config), _word_tokenizer(begin=False))


CLIP = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}


@pytest.fixture(scope="session")
def clip_config(models: Path) -> Path:
    """A JSON configuration of a small CLIP."""
    path = models / "tiny-clip.json"
    path.write_text(json.dumps(CLIP), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def clip_checkpoint(models: Path) -> Path:
    """Its random weights in a file, made by the library itself."""
    import open_clip
    from safetensors.torch import save_file

    torch.manual_seed(5)
    model = open_clip.CLIP(**CLIP)
    path = models / "tiny-clip.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)
    return path


def picture(seed: int, size: tuple[int, int] = (48, 40)) -> Image.Image:
    """Smooth random colours."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BILINEAR)


@pytest.fixture(scope="session")
def draw() -> Callable[..., Image.Image]:
    return picture


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory, draw: Callable[..., Image.Image]) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(200):
        draw(number, (12, 10)).save(folder / f"{number:03d}.png")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "page.jpg").write_bytes(b"<html>404</html>")
    (folder / "cut.png").write_bytes((folder / "000.png").read_bytes()[:60])
    (folder / "folder.png").mkdir()
    shutil.copy(folder / "005.png", folder / "same-as-005.png")
    return folder


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Manifest:
    """200 pictures, 200 texts: four blocks of 64."""
    paths = [f"{n:03d}.png" for n in range(200)]
    from toys.mini import captions, manifest

    return manifest(tmp_path_factory.mktemp("good") / "m", photos, paths, captions(200))
