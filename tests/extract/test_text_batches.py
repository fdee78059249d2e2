"""Texts in batches of about one length and of so many tokens; rows stay under their own ids."""

from __future__ import annotations

import dataclasses
import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from toys.mini import captions, job

from vlpipe.cache_store.reader import open_features
from vlpipe.extract.contracts import Prepared
from vlpipe.extract.load import load_encoder
from vlpipe.extract.rows import TOKENS_CPU, Work, by_length
from vlpipe.extract.run import extract
from vlpipe.manifests.manifest import Manifest
from vlpipe.pipeline import run


def waiting(lengths: list[int]) -> list[tuple[int, Prepared]]:
    return [(n, Prepared({"ids": torch.zeros(length, dtype=torch.long)})) for n, length in enumerate(lengths)]


def shape(lengths: list[int], tokens: int) -> list[list[int]]:
    """The lengths in each batch."""
    work = Work(load_encoder("toys.toy:Toy:m", {}), "text", {}, Path(), 64, 0, tokens)
    batches = list(by_length(work, waiting(lengths)))
    assert sorted(row for batch in batches for row, _ in batch) == list(range(len(lengths)))
    return [[prepared.tensors["ids"].numel() for _, prepared in batch] for batch in batches]


def test_batches_worked_out_on_paper() -> None:
    assert shape([3, 9, 1, 4, 4, 2], 12) == [[9], [4, 4, 3], [2, 1]]
    assert shape([5, 5, 5], 15) == [[5, 5, 5]]
    assert shape([5, 5, 5], 14) == [[5, 5], [5]]
    assert shape([100, 1], 10) == [[100], [1]]  # longer than the budget: alone
    assert shape([], 10) == []


def test_no_batch_has_more_tokens_with_its_padding() -> None:
    draw = random.Random(0)
    for _ in range(50):
        lengths = [draw.randint(1, 20) for _ in range(draw.randint(1, 200))]
        tokens = draw.randint(20, 400)
        batches = shape(lengths, tokens)
        assert all(max(batch) * len(batch) <= tokens for batch in batches)
        assert all(min(one) >= max(next_) for one, next_ in pairwise(batches))


def test_what_the_encoder_pads_to_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load_encoder("toys.toy:Toy:m", {})
    padded = Prepared({"ids": torch.zeros(1, 64)})
    monkeypatch.setattr(encoder, "collate", lambda items: padded)
    work = Work(encoder, "text", {}, Path(), 64, 0, 256)
    assert [len(batch) for batch in by_length(work, waiting([3] * 10))] == [4, 4, 2]


def test_the_default_goes_with_the_batch_size_and_the_device() -> None:
    encoder = load_encoder("toys.toy:Toy:m", {})
    work = Work(encoder, "text", {}, Path(), 8, 0)
    assert work.most_tokens == 8 * TOKENS_CPU
    encoder.device = torch.device("cuda", 0)  # type: ignore[attr-defined]
    assert work.most_tokens > 8 * TOKENS_CPU
    assert dataclasses.replace(work, tokens=5).most_tokens == 5


@pytest.mark.parametrize("tokens", [1, 37, 100_000])
def test_rows_stand_under_their_ids_whatever_the_batches(tokens: int, good: Manifest, tmp_path: Path) -> None:
    work = dataclasses.replace(job(good, tmp_path, "text"), tokens=tokens)
    extract(work)
    found = open_features(work.store, "pooled")
    expected = [[text[:20].count(c) for c in "abc"] for text in captions(200)]
    np.testing.assert_array_equal(found.rows([f"t{n}" for n in range(200)]), np.array(expected, np.float16))


def test_the_command_takes_a_budget(good: Manifest, tmp_path: Path) -> None:
    log = tmp_path / "log"
    arguments = ["extract", "--manifest", str(good.folder), "--cache", str(tmp_path / "c"), "--side", "text"]
    arguments += ["--encoder", "toys.toy:Toy:m", "--set", f"log={json.dumps(str(log))}"]
    assert run([*arguments, "--tokens-per-batch", "40"]) == 0
    assert max(map(int, log.read_text().split())) <= 40 // 2
    assert run([*arguments, "--tokens-per-batch", "0"]) == 2
