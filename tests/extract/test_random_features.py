"""Random rows are a function of seed and content, and pass through the whole command like a model's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vlpipe.cache_store.reader import open_features
from vlpipe.extract.contracts import ImageItem, Item, TextItem
from vlpipe.extract.encoders.random_features import RandomFeatures, RandomFeaturesConfig
from vlpipe.extract.load import load_encoder
from vlpipe.foundation.errors import UsageError
from vlpipe.manifests.manifest import Manifest
from vlpipe.pipeline import run


def row(item: Item, name: str = "pooled", **settings: int) -> torch.Tensor:
    encoder = RandomFeatures("", RandomFeaturesConfig(**settings))
    return encoder.encode(encoder.collate([encoder.prepare(item)]), (name,))[name][0]


def test_rows_depend_on_content_and_seed_alone(draw: Callable[..., Image.Image]) -> None:
    first, other = draw(1), draw(2)
    for one, same, different in (
        (ImageItem("a", first), ImageItem("b", first.copy()), ImageItem("a", other)),
        (TextItem("a", "a dog"), TextItem("b", "a dog"), TextItem("a", "a dog ")),
    ):
        assert torch.equal(row(one), row(same))
        assert not torch.equal(row(one), row(different))
        assert not torch.equal(row(one), row(one, seed=1))
    wide, tall = Image.new("RGB", (4, 2)), Image.new("RGB", (2, 4))
    assert not torch.equal(row(ImageItem("a", wide)), row(ImageItem("a", tall)))


def test_rows_are_standard_normal_and_independent() -> None:
    rows = torch.stack([row(TextItem("x", f"text {number}"), width=2000) for number in range(20)])
    assert rows.mean().abs() < 0.02
    assert (rows.var() - 1).abs() < 0.03
    cosines = torch.nn.functional.normalize(rows) @ torch.nn.functional.normalize(rows).T
    assert (cosines - torch.eye(20)).abs().max() < 0.12  # five standard deviations of 1 / sqrt(2000)


def test_shapes_are_settings(draw: Callable[..., Image.Image]) -> None:
    encoder = RandomFeatures("", RandomFeaturesConfig(width=6, tokens=3))
    items = [ImageItem(str(seed), draw(seed)) for seed in range(2)]
    found = encoder.encode(encoder.collate([encoder.prepare(item) for item in items]), ("pooled", "tokens"))
    assert {name: rows.shape[1:] for name, rows in found.items()} == {
        name: torch.Size(spec.shape) for name, spec in encoder.outputs("image").items()
    }
    assert torch.equal(
        encoder.tower("image")(encoder.collate([encoder.prepare(items[0])]).tensors)[0], found["pooled"][0]
    )
    assert found["tokens"].shape == (2, 3, 6)
    assert list(encoder.outputs("text")) == ["pooled"]


def test_a_model_is_refused() -> None:
    with pytest.raises(UsageError, match="takes no model, given 'small'"):
        load_encoder("random_features:small", {})


def test_the_command_makes_both_stores(good: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["extract", "--manifest", str(good.folder), "--cache", str(tmp_path), "--encoder", "random_features"]
    assert run([*line, "--set", "width=8", "--dtype", "float32", "--json"]) == 0
    stores = [json.loads(found)["store"] for found in capsys.readouterr().out.splitlines()]
    rows = open_features(Path(stores[1]), "pooled")
    text = next(iter(good.batches("text", ["text"], 8))).column(0).to_pylist()[3]
    expected = row(TextItem("", text), width=8).numpy()
    np.testing.assert_array_equal(rows.rows([list(rows.ids)[3]])[0], expected)
    assert run([*line, "--set", "width=8", "--dtype", "float32", "--set", "seed=1"]) == 4
    assert "seed 1" in capsys.readouterr().err
