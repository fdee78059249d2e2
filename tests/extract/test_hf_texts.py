"""Each family of text models against a direct call of one text: pooling by padding side, begin, end and cut."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toys.hf_families import BLOCKS, LIMIT, TEXTS, save
from transformers import AutoModel, AutoTokenizer

from vlpipe.extract.contracts import TextItem
from vlpipe.extract.encoders.hf import Hf, HfConfig
from vlpipe.extract.hf_states import real_mean
from vlpipe.extract.output_names import find_output
from vlpipe.foundation.errors import UsageError, VlpipeError

CLOSE = {"rtol": 0, "atol": 1e-5}
LINES = ["a dog", "a", "a red rat ate dogs.", "gore to", "roared at great teargas"]
# Family: the numbers before and after every text.
FRAMES = {"bert": ([2], [3]), "llama": ([0], []), "olmo2": ([], []), "gemma2": ([2], []), "gemma3-text": ([2], [])}
FRAMES["gemma3"] = FRAMES["gemma2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    root = tmp_path_factory.mktemp("families")

    def saved(name: str, side: str = "") -> Path:
        place = root / f"{name}{side}"
        if not place.exists():
            save(place, *TEXTS[name])
            rules = json.loads((place / "tokenizer_config.json").read_text())
            (place / "tokenizer_config.json").write_text(
                json.dumps(rules | ({"padding_side": side} if side else {}))
            )
        return place

    return saved


def loaded(folder: Path, **settings: Any) -> Hf:
    return Hf(str(folder), HfConfig(device="cpu", **settings))


def encode(encoder: Hf, texts: list[str], outputs: tuple[str, ...]) -> dict[str, Tensor]:
    return encoder.encode(encoder.collate([encoder.prepare(TextItem("x", text)) for text in texts]), outputs)


def ids_of(encoder: Hf, text: str) -> list[int]:
    found: list[int] = encoder.prepare(TextItem("x", text)).tensors["input_ids"].tolist()
    return found


def direct_rows(folder: Path, text: str) -> dict[str, Tensor]:
    """One text alone, without padding, pooled by hand."""
    ids = torch.tensor([AutoTokenizer.from_pretrained(folder)(text)["input_ids"]])
    with torch.inference_mode():
        answer = AutoModel.from_pretrained(folder).eval()(input_ids=ids, output_hidden_states=True)
    states = {"": answer.last_hidden_state[0]}
    states |= {f"layer_{k:02d}.": state[0] for k, state in enumerate(answer.hidden_states)}
    rows = {}
    for prefix, state in states.items():
        rows[f"{prefix}mean"] = sum(token for token in state) / len(state)
        rows[f"{prefix}last"] = state[len(ids[0]) - 1]
        if folder.name.startswith("bert"):
            rows[f"{prefix}cls"] = state[0]
    if getattr(answer, "pooler_output", None) is not None:
        rows["pooler"] = answer.pooler_output[0]
    return rows


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", TEXTS)
def test_every_pooling_in_a_batch_equals_a_direct_call_alone(
    name: str, side: str, folder: Callable[..., Path]
) -> None:
    encoder = loaded(folder(name, side))
    assert encoder.texts.tokens.tokenizer.padding_side == side
    outputs = tuple(encoder.outputs("text"))
    together = encode(encoder, LINES, outputs)
    for row, text in enumerate(LINES):
        expected = direct_rows(folder(name, side), text)
        assert expected.keys() == set(outputs)
        for output, values in expected.items():
            torch.testing.assert_close(together[output][row], values, **CLOSE)
            assert together[output].shape == (len(LINES), *encoder.outputs("text")[output].shape)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_does_not_depend_on_its_batch_mates(name: str, folder: Callable[..., Path]) -> None:
    encoder = loaded(folder(name))
    outputs = tuple(encoder.outputs("text"))
    alone = [encode(encoder, [text], outputs) for text in LINES]
    for mates in ([0, 1], [4, 3, 2, 1, 0], [1, 4, 1]):
        together = encode(encoder, [LINES[row] for row in mates], outputs)
        for place, row in enumerate(mates):
            for output, values in together.items():
                torch.testing.assert_close(values[place], alone[row][output][0], **CLOSE)


@pytest.mark.parametrize("name", TEXTS)
def test_begin_and_end_exactly_once_and_the_cut_at_the_limit(name: str, folder: Callable[..., Path]) -> None:
    encoder, (before, after) = loaded(folder(name)), FRAMES[name]
    letter = ids_of(encoder, "a")[len(before)]
    assert ids_of(encoder, "a") == [*before, letter, *after]
    room = LIMIT - len(before) - len(after)
    for tokens, cut in ((room - 1, False), (room, False), (room + 1, True), (5 * room, True)):
        prepared = encoder.prepare(TextItem("x", " ".join(["a"] * tokens) if name == "bert" else "a" * tokens))
        kept = min(tokens, room)
        assert prepared.cut == (cut,)
        assert len(prepared.tensors["input_ids"]) == len(before) + kept + len(after)
        ids = prepared.tensors["input_ids"].tolist()
        assert ids[: len(before)] == before
        assert ids[len(ids) - len(after) :] == after
        assert not {*before, *after} & {*ids[len(before) : len(ids) - len(after)]}
        assert all(torch.isfinite(row).all() for row in encode(encoder, ["a" * tokens], ("mean", "last")).values())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bert", "[CLS] a"), ("bert", "a [SEP]"), ("bert", "[CLS] [CLS] a [SEP] [SEP]"),
        ("llama", "<|begin_of_text|>a"), ("gemma2", "<bos>a"), ("gemma2", "<bos><bos>a"),
    ],
)  # fmt: skip
def test_special_tokens_in_the_text_are_not_doubled(name: str, text: str, folder: Callable[..., Path]) -> None:
    encoder = loaded(folder(name))
    assert ids_of(encoder, text) == ids_of(encoder, "a")


@pytest.mark.parametrize("words", [20, 21, 22, 23, 60])
def test_a_doubled_end_token_does_not_move_the_cut(words: int, folder: Callable[..., Path]) -> None:
    encoder = loaded(folder("bert"))
    ids, cut = encoder.texts.tokens.encode("a " * words + "[SEP]")
    assert (len(ids), cut) == (min(words + 2, LIMIT), words + 2 > LIMIT)
    assert ids.count(3) == 1
    assert ids[-1] == 3


@pytest.mark.parametrize("name", TEXTS)
def test_layer_k_is_what_block_k_gives(name: str, folder: Callable[..., Path]) -> None:
    encoder = loaded(folder(name))
    blocks = next(m for m in encoder.model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == BLOCKS)
    given: list[Tensor] = []
    blocks[0].register_forward_pre_hook(lambda _m, inputs: given.append(inputs[0]))
    for block in blocks:
        block.register_forward_hook(lambda _m, _i, out: given.append(out[0] if isinstance(out, tuple) else out))
    known = encoder.outputs("text")
    names = [find_output(f"layer_{layer}.mean", known) for layer in (0, 1, -2, -1)]
    assert names[2] == "layer_02.mean"  # the penultimate
    given.clear()
    found = encode(encoder, ["a red rat"], (*names, "mean"))
    for layer, state in zip(names[:-1], given, strict=False):
        torch.testing.assert_close(found[layer][0], state[0].mean(0), **CLOSE)
    torch.testing.assert_close(found["layer_03.mean"], found["mean"])  # after the final norm
    for number in (4, -5):
        with pytest.raises(UsageError, match=r"layers 0 \(embeddings\) to 3"):
            find_output(f"layer_{number}.mean", known)


def test_simcse_is_berts_pooler_or_its_first_token(folder: Callable[..., Path]) -> None:
    encoder = loaded(folder("bert"))
    found = encode(encoder, LINES, ("cls", "pooler"))
    dense = encoder.model.pooler.dense
    by_hand = torch.tanh(found["cls"].clone() @ dense.weight.T + dense.bias)
    torch.testing.assert_close(found["pooler"], by_hand.detach(), **CLOSE)


def test_no_padding_token_leaves_tokenizer_and_table_as_they_were(folder: Callable[..., Path]) -> None:
    encoder = loaded(folder("llama"))
    before = AutoTokenizer.from_pretrained(folder("llama"))
    encode(encoder, LINES, ("mean",))
    after = encoder.texts.tokens.tokenizer
    assert (after.pad_token, after.special_tokens_map) == (None, before.special_tokens_map)
    assert after.get_vocab() == before.get_vocab()
    assert encoder.model.get_input_embeddings().num_embeddings == 48


def test_what_stands_on_padding_is_not_touched() -> None:
    state = torch.tensor([[[1.0], [3.0], [torch.nan]], [[4.0], [torch.inf], [-torch.inf]]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert real_mean(state, mask).tolist() == [[2.0], [4.0]]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", TEXTS)
def test_reduced_precision_equals_the_librarys_own(name: str, precision: str, folder: Callable[..., Path]) -> None:
    encoder, dtype = loaded(folder(name), precision=precision), getattr(torch, precision)
    row = encode(encoder, ["a red rat"], ("last",))["last"][0]
    with torch.inference_mode():
        model = AutoModel.from_pretrained(folder(name), dtype=dtype).eval()
        answer = model(input_ids=torch.tensor([ids_of(encoder, "a red rat")]))
    assert row.dtype == torch.float32
    assert torch.equal(row, answer.last_hidden_state[0, -1].float())


def test_the_text_part_of_a_model_that_also_sees(folder: Callable[..., Path]) -> None:
    encoder = loaded(folder("gemma3"))
    assert encoder.sides() == ("text",)
    assert not any("vision" in name for name, _ in encoder.model.named_parameters())


def test_gemma_2_runs_without_an_attention_setting(folder: Callable[..., Path]) -> None:
    assert loaded(folder("gemma2")).identity("text")["kernels"] == "attention eager"
    assert loaded(folder("gemma3-text")).identity("text")["kernels"] == "attention sdpa"


@pytest.mark.parametrize("name", ["bert", "gemma2"])
def test_the_tokenizers_padding_side_is_not_part_of_a_row(name: str, folder: Callable[..., Path]) -> None:
    left, right = (loaded(folder(name, side)).identity("text") for side in ("left", "right"))
    assert left == right


@pytest.mark.parametrize("name", TEXTS)
def test_a_folder_without_a_vocabulary_is_refused(name: str, folder: Callable[..., Path], tmp_path: Path) -> None:
    copy = shutil.copytree(folder(name), tmp_path / "copy")
    (copy / "tokenizer.json").unlink()
    with pytest.raises(VlpipeError, match=r"no vocabulary|AutoTokenizer cannot be loaded") as caught:
        loaded(copy)
    assert "\n" not in str(caught.value)


def test_a_real_models_text_does_not_depend_on_its_batch_mates(real_models: Path) -> None:
    encoder = loaded(real_models / "all-MiniLM-L6-v2")
    lines = ["dog", "a dog in the snow", "two men in red hats play a game of chess in a park at night", "", "?!"]
    names = ("mean", "cls", "last", "pooler", find_output("layer_-2.mean", encoder.outputs("text")))
    assert names[-1] == "layer_05.mean"
    together = encode(encoder, lines, names)
    for row, line in enumerate(lines):
        expected = direct_rows(real_models / "all-MiniLM-L6-v2", line)
        for output, values in encode(encoder, [line], names).items():
            torch.testing.assert_close(values[0], together[output][row], **CLOSE)
            if output in expected:
                torch.testing.assert_close(values[0], expected[output], **CLOSE)
