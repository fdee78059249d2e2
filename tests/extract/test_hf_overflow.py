"""Reduced precision through the whole command: a value that overflows is never a row."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from toys.hf_families import TEXTS, save
from transformers import BertModel

from vlpipe.cache_store.reader import open_features
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.writer import write_manifest
from vlpipe.pipeline import run


@pytest.fixture(scope="module")
def hot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BERT whose embedding of the letter t is beyond float16."""
    folder = save(tmp_path_factory.mktemp("hot") / "bert", *TEXTS["bert"])
    model = BertModel.from_pretrained(folder)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[11, 0] = 1e5
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    root = tmp_path_factory.mktemp("lines")
    texts = [{"text_id": line, "text": line, "role": "caption"} for line in ("a", "dog", "t", "a dog")]
    return write_manifest(root / "m", name="m", source="s", licence="l", image_root=root, images=[], texts=texts)


def command(lines: Manifest, hot: Path, cache: Path, precision: str) -> list[str]:
    more = ["--dtype", "float32", "--set", f'precision="{precision}"', "--json"]
    return ["extract", "--manifest", str(lines.folder), "--cache", str(cache), "--encoder", f"hf:{hot}", *more]


def test_an_overflow_in_float16_names_its_row(
    lines: Manifest, hot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(lines, hot, tmp_path, "float16")) == 1
    error = capsys.readouterr().err
    assert "output 'mean' of row 't' has the value nan" in error
    assert "precision" in error


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_does_not_overflow_is_finite(
    precision: str, lines: Manifest, hot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(lines, hot, tmp_path, precision)) == 0
    summary = json.loads(capsys.readouterr().out)
    rows = open_features(Path(summary["store"]), "mean").rows(["a", "dog", "t", "a dog"])
    assert np.isfinite(rows).all()
    assert (np.linalg.norm(rows, axis=1) > 0).all()
