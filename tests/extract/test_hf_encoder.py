from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

from vlpipe.extract.contracts import ImageItem, Prepared, TextItem
from vlpipe.extract.encoders.hf import Hf, HfConfig
from vlpipe.foundation.errors import UsageError, VlpipeError

TEXTS = [
    "a photo of the dog",
    "red",
    "the blue bird and the cat on a mat",
    "fish hat tree house dog runs",
    "cat .",
]
CLOSE = {"rtol": 0, "atol": 1e-5}


@pytest.fixture(scope="module")
def loaded() -> Callable[..., Hf]:
    found: dict[str, Hf] = {}

    def load(folder: Path, **settings: Any) -> Hf:
        key = f"{folder} {settings}"
        if key not in found:
            found[key] = Hf(str(folder), HfConfig(device="cpu", **settings))
        return found[key]

    return load


def encode_texts(
    encoder: Hf, texts: list[str], outputs: tuple[str, ...], batch: int = 64
) -> dict[str, torch.Tensor]:
    items = [encoder.prepare(TextItem(str(i), text)) for i, text in enumerate(texts)]
    parts = [encoder.encode(encoder.collate(items[i : i + batch]), outputs) for i in range(0, len(items), batch)]
    return {name: torch.cat([part[name] for part in parts]) for name in outputs}


def alone(folder: Path, text: str) -> Any:
    """The library's own call on one text, and its token numbers."""
    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.inference_mode():
        model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        return model(tokens["input_ids"], output_hidden_states=True)


@pytest.mark.parametrize("name", ["dinov2", "dinov2_registers"])
def test_image_outputs_equal_a_direct_call(
    name: str, loaded: Callable[..., Hf], draw: Callable[..., Image.Image], request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(name)
    encoder = loaded(folder)
    pictures = [draw(seed, size) for seed, size in enumerate([(300, 240), (56, 56), (40, 90)])]
    outputs = encoder.outputs("image")
    batch = encoder.collate([encoder.prepare(ImageItem(str(i), p)) for i, p in enumerate(pictures)])
    found = encoder.encode(batch, tuple(outputs))

    pixels = AutoImageProcessor.from_pretrained(folder)(pictures, return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        direct = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()(pixels, output_hidden_states=True)
    registers = 4 if name == "dinov2_registers" else 0
    patches = 256 if name == "dinov2_registers" else 16
    last = direct.last_hidden_state
    assert last.shape[1] == 1 + registers + patches
    expected = {"cls": last[:, 0], "tokens": last[:, 1 + registers :]}
    expected["patch_mean"] = expected["tokens"].mean(1)
    expected["pooler"] = direct.pooler_output
    for layer, state in enumerate(direct.hidden_states):
        expected[f"layer_{layer:02d}.cls"] = state[:, 0]
        expected[f"layer_{layer:02d}.tokens"] = state[:, 1 + registers :]
        expected[f"layer_{layer:02d}.mean"] = state[:, 1 + registers :].mean(1)
    assert set(outputs) == set(expected)
    for output, values in expected.items():
        assert found[output].shape == (3, *outputs[output].shape)
        torch.testing.assert_close(found[output], values, **CLOSE)
    assert outputs["tokens"].shape[0] == patches


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
def test_text_outputs_equal_a_direct_call_one_by_one(
    name: str, loaded: Callable[..., Hf], request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(name)
    encoder = loaded(folder)
    outputs = tuple(encoder.outputs("text"))
    assert ("cls" in outputs) == (name == "bert")
    found = encode_texts(encoder, TEXTS, outputs)
    for row, text in enumerate(TEXTS):
        direct = alone(folder, text)
        states = {"": direct.last_hidden_state[0]}
        states |= {f"layer_{k:02d}.": state[0] for k, state in enumerate(direct.hidden_states)}
        for prefix, state in states.items():
            torch.testing.assert_close(found[f"{prefix}mean"][row], state.mean(0), **CLOSE)
            torch.testing.assert_close(found[f"{prefix}last"][row], state[-1], **CLOSE)
            if name == "bert":
                torch.testing.assert_close(found[f"{prefix}cls"][row], state[0], **CLOSE)


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_text_does_not_depend_on_its_batch_mates(
    name: str, attention: str, loaded: Callable[..., Hf], request: pytest.FixtureRequest
) -> None:
    encoder = loaded(request.getfixturevalue(name), attention=attention)
    texts = [" ".join(TEXTS[i % 5].split()[: 1 + i % 7]) for i in range(64)]
    outputs = tuple(encoder.outputs("text"))
    together = encode_texts(encoder, texts, outputs, 64)
    for batch in (1, 7):
        for output, rows in encode_texts(encoder, texts, outputs, batch).items():
            torch.testing.assert_close(rows, together[output], **CLOSE)


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_tokenizers_padding_side_changes_nothing(side: str, bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "copy")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"padding_side": side}))
    outputs = ("mean", "cls", "last")
    found = encode_texts(Hf(str(folder), HfConfig(device="cpu")), TEXTS, outputs)
    for output, rows in encode_texts(Hf(str(bert), HfConfig(device="cpu")), TEXTS, outputs, 1).items():
        torch.testing.assert_close(found[output], rows, **CLOSE)


def test_no_padding_token_leaves_the_embedding_table_unchanged(llama: Path, loaded: Callable[..., Hf]) -> None:
    encoder = loaded(llama)
    assert encoder.texts.tokens.tokenizer.pad_token_id is None
    table = AutoModel.from_pretrained(llama).get_input_embeddings().weight
    assert torch.equal(encoder.model.get_input_embeddings().weight, table)


@pytest.mark.parametrize("text", ["red dog", "<s> red dog", "<s> <s> red dog"])
def test_exactly_one_begin_token(text: str, llama: Path, loaded: Callable[..., Hf]) -> None:
    assert loaded(llama).prepare(TextItem("x", text)).tensors["input_ids"].tolist()[:2] == [0, 7]


def test_a_missing_begin_token_is_added_where_the_tokenizer_says_so(llama: Path) -> None:
    encoder = Hf(str(llama), HfConfig(device="cpu", max_length=3))
    rules = encoder.texts.tokens.tokenizer
    rules.backend_tokenizer.post_processor = rules.backend_tokenizer.post_processor.__class__(
        single="$A", special_tokens=[]
    )
    rules.add_bos_token = True
    assert encoder.texts.tokens.encode("red dog cat mat") == ([0, 7, 9], True)
    assert encoder.texts.tokens.encode("red dog") == ([0, 7, 9], False)


@pytest.mark.parametrize(("words", "cut"), [(13, False), (14, False), (15, True), (40, True)])
def test_a_text_is_cut_at_the_models_limit_and_flagged(
    words: int, cut: bool, bert: Path, loaded: Callable[..., Hf]
) -> None:
    encoder = loaded(bert)
    prepared = encoder.prepare(TextItem("x", " ".join(["dog"] * words)))
    ids = prepared.tensors["input_ids"].tolist()
    assert prepared.cut == (cut,)
    assert len(ids) == min(words + 2, 16)
    assert (ids[0], ids[-1]) == (2, 3)  # [CLS], [SEP]


def test_a_sentence_transformers_folder_says_its_own_limit(bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "copy")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    encoder = Hf(str(folder), HfConfig(device="cpu"))
    assert encoder.texts.tokens.limit == 8
    assert encoder.identity("text")["max_length"] == "8"


@pytest.mark.parametrize("length", [2, 17])
def test_an_impossible_max_length_is_refused(length: int, bert: Path) -> None:
    with pytest.raises(UsageError, match="takes 3 to 16 tokens"):
        Hf(str(bert), HfConfig(max_length=length))


def test_a_text_without_tokens_is_refused_by_its_row(gpt2: Path, loaded: Callable[..., Hf]) -> None:
    with pytest.raises(VlpipeError, match="no tokens"):
        loaded(gpt2).prepare(TextItem("x", ""))


def test_a_prompt_is_put_before_the_text(bert: Path, loaded: Callable[..., Hf]) -> None:
    plain = loaded(bert).prepare(TextItem("x", "a photo of dog"))
    asked = Hf(str(bert), HfConfig(device="cpu", prompt="a photo of ")).prepare(TextItem("x", "dog"))
    assert torch.equal(plain.tensors["input_ids"], asked.tensors["input_ids"])


def test_reduced_precision_equals_the_librarys_own(dinov2: Path, llama: Path) -> None:
    pixels = torch.rand(2, 3, 56, 56)
    image = Hf(str(dinov2), HfConfig(device="cpu", precision="bfloat16"))
    found = image.encode(Prepared({"pixel_values": pixels}, (False, False)), ("cls",))["cls"]
    with torch.inference_mode():
        direct = AutoModel.from_pretrained(dinov2, dtype=torch.bfloat16).eval()(pixels.bfloat16())
    assert found.dtype == torch.float32
    assert torch.equal(found, direct.last_hidden_state[:, 0].float())
    text = Hf(str(llama), HfConfig(device="cpu", precision="bfloat16"))
    assert text.model.rotary_emb.inv_freq.dtype == torch.float32
    row = encode_texts(text, ["red dog"], ("last",))["last"]
    with torch.inference_mode():
        model = AutoModel.from_pretrained(llama, dtype=torch.bfloat16).eval()
        assert torch.equal(row[0], model(torch.tensor([[0, 7, 9]])).last_hidden_state[0, -1].float())


def test_training_mode_cannot_leak_in(dinov2: Path, draw: Callable[..., Image.Image]) -> None:
    encoder = Hf(str(dinov2), HfConfig(device="cpu"))
    encoder.model.config.hidden_dropout_prob = 0.5
    for module in encoder.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    batch = encoder.collate([encoder.prepare(ImageItem("x", draw(0)))])
    before = encoder.encode(batch, ("cls",))["cls"]
    encoder.tower("image").train()
    assert torch.equal(encoder.encode(batch, ("cls",))["cls"], before)


def test_the_tower_gives_the_main_output_with_gradients(dinov2: Path, draw: Callable[..., Image.Image]) -> None:
    encoder = Hf(str(dinov2), HfConfig(device="cpu"))
    batch = encoder.collate([encoder.prepare(ImageItem("x", draw(0)))])
    tower = encoder.tower("image").eval()
    rows = tower(batch.tensors)
    assert torch.allclose(rows, encoder.encode(batch, ("cls",))["cls"], atol=1e-6)
    rows.sum().backward()
    assert sum(p.grad is not None for p in tower.parameters()) > 10
