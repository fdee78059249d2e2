"""SigLIP's first tokenizer, which needs sentencepiece: its own canonical form, and what it is told apart by."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from toys import hf_families as families
from toys.hf_families import LIMIT, save, squares

from vlpipe.extract.contracts import TextItem
from vlpipe.extract.encoders.hf import Hf, HfConfig

pieces = pytest.importorskip("sentencepiece", reason="SigLIP's tokenizer needs sentencepiece")

LINES = ["A red rat!", "a  RED, rat", "gore to a dog"]


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("siglip")
    model = io.BytesIO()
    lines = ["a red rat ate dogs", "gore to a great dog", "roared at a tree"] * 20
    pieces.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=40, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    (root / "spiece.model").write_bytes(model.getvalue())
    tokenizer = transformers.SiglipTokenizer(str(root / "spiece.model"), model_max_length=LIMIT)
    return save(root / "siglip", families.siglip, squares(32), lambda: tokenizer)


@pytest.mark.filterwarnings("ignore:This sequence already has")
def test_texts_are_canonical_padded_to_the_end_and_not_masked(siglip: Path) -> None:
    encoder = Hf(str(siglip), HfConfig(device="cpu"))
    items = [encoder.prepare(TextItem("x", line)) for line in LINES]
    rows = encoder.encode(encoder.collate(items), ("pooled", "mean"))
    assert torch.equal(items[0].tensors["input_ids"], items[1].tensors["input_ids"])
    assert torch.equal(rows["pooled"][0], rows["pooled"][1])
    tokenizer = transformers.AutoTokenizer.from_pretrained(siglip)
    ids = tokenizer(LINES, padding="max_length", return_tensors="pt")["input_ids"]
    assert ids.shape == (3, LIMIT)
    with torch.inference_mode():
        direct = transformers.AutoModel.from_pretrained(siglip).eval().text_model(input_ids=ids)
    torch.testing.assert_close(rows["pooled"], direct.pooler_output, rtol=0, atol=1e-5)
    assert encoder.texts.tokens.encode("a rat</s>") == encoder.texts.tokens.encode("a rat")
    assert encoder.identity("text")["case"] == "the tokenizer's"


def test_every_cut_text_ends_with_one_end_token(siglip: Path) -> None:
    tokens = Hf(str(siglip), HfConfig(device="cpu")).texts.tokens
    one = len(tokens.encode("a")[0])
    for words in range(1, 30):
        ids, cut = tokens.encode(" ".join(["a"] * words))
        assert (cut, len(ids)) == (words * (one - 1) + 1 > LIMIT, min(words * (one - 1) + 1, LIMIT))
        assert (ids.count(1), ids[-1]) == (1, 1)


def test_its_rules_are_part_of_its_identity(siglip: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(siglip, tmp_path / "copy")
    first = Hf(str(siglip), HfConfig(device="cpu")).identity("text")
    assert Hf(str(copy), HfConfig(device="cpu")).identity("text") == first
    rules = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps(rules | {"do_lower_case": False}))
    changed = Hf(str(copy), HfConfig(device="cpu")).identity("text")
    assert {field for field in first if first[field] != changed[field]} == {"tokenizer"}
