from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vlpipe.backbones.data import Order, Pairs, load_pairs
from vlpipe.extract.encoders.bundled import Bundled, BundledConfig
from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.writer import write_manifest


def pairs(sizes: list[int]) -> Pairs:
    rows = sum(sizes)
    return Pairs(
        lambda _: {},
        lambda _: {},
        np.cumsum([0, *sizes]),
        {"image_id": [*range(len(sizes))]},
        {"text": [*range(rows)]},
    )


def test_captions_are_the_images_own_and_all_come_up() -> None:
    found = pairs([1, 3, 2])
    drawn: dict[int, Counter[int]] = {0: Counter(), 1: Counter(), 2: Counter()}
    for seed in range(300):
        picked = found.captions(np.array([2, 0, 1]), 1, np.random.default_rng(seed))
        assert picked.shape == (3, 1)
        for image, text in zip((2, 0, 1), picked[:, 0], strict=True):
            drawn[image][int(text)] += 1
    assert {image: set(counts) for image, counts in drawn.items()} == {0: {0}, 1: {1, 2, 3}, 2: {4, 5}}
    assert min(drawn[1].values()) > 70


def test_several_captions_differ_where_there_are_enough() -> None:
    picked = pairs([1, 3, 2]).captions(np.array([0, 1, 2]), 3, np.random.default_rng(0))
    assert picked[0].tolist() == [0, 0, 0]
    assert sorted(picked[1].tolist()) == [1, 2, 3]
    assert set(picked[2].tolist()) == {4, 5}
    assert pairs([1, 3, 2]).with_captions(2).tolist() == [1, 2]


def test_columns_are_those_of_the_images_and_of_their_picked_captions() -> None:
    found = pairs([1, 3, 2])
    picked = found.captions(np.array([2, 1]), 2, np.random.default_rng(0))
    assert found.picked(np.array([2, 1]), picked) == {"image_id": [2, 1], "text": picked.tolist()}


def test_an_epoch_sees_each_image_once_in_a_seeded_order() -> None:
    order, again = Order(np.arange(10), 3, [5]), Order(np.arange(10), 3, [5])
    epochs = [[order.at(3 * epoch + step).tolist() for step in range(3)] for epoch in range(2)]
    for epoch in epochs:
        seen = [row for batch in epoch for row in batch]
        assert len(set(seen)) == 9  # whole batches only
    assert epochs[0] != epochs[1]
    assert again.at(4).tolist() == epochs[1][1]  # also when asked for out of order
    assert Order(np.arange(10), 3, [6]).at(0).tolist() != epochs[0][0]


def test_too_few_images_are_refused() -> None:
    with pytest.raises(VlpipeError, match="3 images cannot fill a batch of 4"):
        Order(np.arange(3), 4, [0])


@pytest.fixture
def encoder() -> Bundled:
    return Bundled("mad-clip", BundledConfig(init_seed=0))


def manifest(folder: Path, bad: str | None = None, text: str = "red-7") -> Manifest:
    folder.mkdir()
    for name, value in (("a", 10), ("b", 20), ("c", 30), ("d", 40)):
        Image.new("RGB", (28, 28), (value, 0, 0)).save(folder / f"{name}.png")
    if bad:
        (folder / bad).write_bytes(b"<html>")
    images = [
        {"image_id": name, "path": f"{name}.png", "split": "val" if name == "d" else "train"} for name in "abcd"
    ]
    # Texts out of their images' order; a without one; a prompt that is no caption.
    texts = [
        {"text_id": f"{image}{number}", "text": text, "image_id": image, "role": role, "split": "train"}
        for number, (image, role) in enumerate(
            [("c", "caption"), ("b", "caption"), ("d", "caption"), ("c", "caption"), ("b", "prompt")]
        )
    ]
    return write_manifest(
        folder / "m", name="t", source="s", licence="l", image_root=folder, images=images, texts=texts
    )


def test_pictures_and_their_captions_are_joined(tmp_path: Path, encoder: Bundled) -> None:
    found = load_pairs(manifest(tmp_path / "m"), encoder, "train")
    assert found is not None
    assert found.columns["image_id"] == ["b", "c"]
    assert found.first.tolist() == [0, 1, 3]
    assert found.text_columns == {"text_id": ["b1", "c0", "c3"], "text": ["red-7"] * 3}
    pixels = found.images(np.array([1, 0]))["pixels"]
    assert pixels[:, 0, 0, 0].tolist() == [30, 20]
    assert pixels.dtype == torch.uint8
    assert found.texts(np.arange(3))["tokens"].shape == (3, 8)
    assert load_pairs(manifest(tmp_path / "n"), encoder, "test") is None


def test_a_picture_or_text_that_cannot_be_used_is_named(tmp_path: Path, encoder: Bundled) -> None:
    with pytest.raises(VlpipeError, match="image 'c' cannot be used"):
        load_pairs(manifest(tmp_path / "m", bad="c.png"), encoder, "train")
    with pytest.raises(VlpipeError, match="the word 'dog' is outside the vocabulary"):
        load_pairs(manifest(tmp_path / "n", text="red-dog"), encoder, "train")
