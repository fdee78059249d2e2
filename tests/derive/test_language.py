"""The interface to language models, on a tiny random Llama in a local folder; and answers that are kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from vlpipe.derive.language import LocalModel, Remembered
from vlpipe.derive.memory import Memory
from vlpipe.foundation.errors import VlpipeError

WORDS = ["a", "the", "dog", "cat", "red", "big", "runs", "sits", "in", "on", "grass", "street", "and", "two"]
PROMPTS = ["a dog runs", "two cat", "the big red dog sits on the grass and runs in the street"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with random weights, saved as the library does."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    numbers = {word: number for number, word in enumerate(["<s>", "</s>", "<unk>", *WORDS])}
    inner = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(numbers), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=1, initializer_range=0.5,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("language") / "llama"
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


class Counting:
    """A model that says what it was asked."""

    identity = "counting"

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[str, ...], int | None, int]] = []

    def complete(self, prompts: Sequence[str], seed: int | None, max_tokens: int) -> list[str]:
        self.calls.append((tuple(prompts), seed, max_tokens))
        return [f"{prompt} {seed}" for prompt in prompts]


def test_the_likeliest_tokens_are_those_of_a_plain_loop(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
    for _ in range(6):
        with torch.inference_mode():
            following = model(ids).logits[0, -1].argmax()
        if following == tokenizer.eos_token_id:
            break
        ids = torch.cat([ids, following.view(1, 1)], 1)
    right = tokenizer.decode(ids[0, len(tokenizer(PROMPTS[0])["input_ids"]) :], skip_special_tokens=True)
    assert LocalModel(folder, "cpu").complete(PROMPTS[:1], None, 6) == [right]


def test_an_answer_depends_on_prompt_and_seed_alone(folder: Path) -> None:
    together = LocalModel(folder, "cpu", batch_size=3).complete(PROMPTS, 5, 8)
    alone = LocalModel(folder, "cpu", batch_size=1)
    assert [alone.complete([prompt], 5, 8)[0] for prompt in PROMPTS] == together
    assert alone.complete(PROMPTS[::-1], 5, 8) == together[::-1]
    drawn = {alone.complete(PROMPTS[:1], seed, 8)[0] for seed in range(8)}
    assert len(drawn) > 2
    assert len(alone.complete(PROMPTS[:1], 0, 3)[0].split()) <= 3


def test_a_chat_template_is_used_where_there_is_one(folder: Path, tmp_path: Path) -> None:
    chatty = shutil.copytree(folder, tmp_path / "chatty")
    template = "{% for m in messages %}two {{ m['content'] }} and{% endfor %}"
    (chatty / "chat_template.jinja").write_text(template, encoding="utf-8")
    plain, chat = LocalModel(folder, "cpu"), LocalModel(chatty, "cpu")
    assert chat.complete(["cat sits"], None, 6) == plain.complete(["two cat sits and"], None, 6)
    assert chat.identity != plain.identity


def test_identity_is_of_the_files_and_not_of_the_path(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "elsewhere")
    assert LocalModel(copy, "cpu").identity == LocalModel(folder, "cpu").identity
    weights = load_file(copy / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    assert LocalModel(copy, "cpu").identity != LocalModel(folder, "cpu").identity


def test_what_is_no_whole_model_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(VlpipeError, match="does not exist; expected a folder with a model"):
        LocalModel(tmp_path / "nothing")
    with pytest.raises(VlpipeError, match=r"has no config\.json"):
        LocalModel(tmp_path)
    part = shutil.copytree(folder, tmp_path / "part")
    weights = {k: v for k, v in load_file(part / "model.safetensors").items() if "layers.1.mlp" not in k}
    save_file(weights, part / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(VlpipeError, match=r"lacks 3 tensors, first 'model\.layers\.1\.mlp"):
        LocalModel(part, "cpu").complete(["a dog"], None, 2)
    config = json.loads((part / "config.json").read_text())
    (part / "config.json").write_text(json.dumps(config | {"model_type": "no such thing"}))
    with pytest.raises(VlpipeError, match="cannot be loaded"):
        LocalModel(part, "cpu").complete(["a dog"], None, 2)


def test_a_second_run_asks_nothing(tmp_path: Path) -> None:
    model = Counting()
    first = Remembered(model, Memory(tmp_path / "m.sqlite"), at_once=2)
    assert first.complete(["x", "y", "x", "z"], 1, 9) == ["x 1", "y 1", "x 1", "z 1"]
    assert [call[0] for call in model.calls] == [("x", "y"), ("z",)]
    again = Remembered(model, Memory(tmp_path / "m.sqlite"))
    assert again.complete(["z", "x"], 1, 9) == ["z 1", "x 1"]
    assert (again.asked, len(model.calls)) == (0, 2)
    again.complete(["x"], 2, 9)
    again.complete(["x"], 1, 8)
    assert again.asked == 2


def test_answers_before_a_break_are_kept(tmp_path: Path) -> None:
    class Breaking(Counting):
        def complete(self, prompts: Sequence[str], seed: int | None, max_tokens: int) -> list[str]:
            if len(self.calls) == 2:
                raise KeyboardInterrupt
            return super().complete(prompts, seed, max_tokens)

    prompts = [str(n) for n in range(10)]
    with pytest.raises(KeyboardInterrupt):
        Remembered(Breaking(), Memory(tmp_path / "m.sqlite"), at_once=3).complete(prompts, 0, 1)
    model = Counting()
    rest = Remembered(model, Memory(tmp_path / "m.sqlite"), at_once=3)
    assert rest.complete(prompts, 0, 1) == [f"{n} 0" for n in range(10)]
    assert rest.asked == 4


def test_a_file_that_is_no_memory_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.sqlite").write_bytes(b"this is not a database, whatever its name says" * 50)
    with pytest.raises(VlpipeError, match=r"m\.sqlite' cannot be used .*delete the file"):
        Memory(tmp_path / "m.sqlite")


def test_thousands_of_keys_and_odd_texts(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "m.sqlite")
    answers = {str(n): f"{n}\n\x00'é\U0001f415" for n in range(1_203)}
    memory.put(answers)
    memory.put({"7": "another"})
    assert memory.get([*answers, "no"]) == answers
    assert memory.get([]) == {}
