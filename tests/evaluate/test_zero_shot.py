from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vlpipe.evaluate.zero_shot import accuracy, attribute_accuracy, encoded
from vlpipe.extract.contracts import ImageItem, Item, Prepared, TextItem
from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.writer import write_manifest

PLANE = {"left": (1.0, 0.0), "right": (0.0, 1.0), "dark": (-1.0, 0.0), "bright": (0.0, -1.0)}


class Told:
    """An encoder whose images are points told by their red and green, and whose texts are fixed points."""

    def prepare(self, item: Item) -> Prepared:
        if isinstance(item, ImageItem):
            red, green, _ = np.asarray(item.picture)[0, 0]
            return Prepared({"x": torch.tensor([float(red), float(green)])})
        return Prepared({"x": torch.tensor(PLANE[item.text])})

    def collate(self, items: list[Prepared]) -> Prepared:
        return Prepared({"x": torch.stack([item.tensors["x"] for item in items])})

    def encode(self, batch: Prepared, outputs: tuple[str, ...]) -> dict[str, Any]:
        return dict.fromkeys(outputs, batch.tensors["x"])


def manifest(folder: Path, colours: list[tuple[int, int]], attributes: list[dict[str, str]]) -> Manifest:
    rows = []
    for number, (colour, values) in enumerate(zip(colours, attributes, strict=True)):
        Image.new("RGB", (2, 2), (*colour, 0)).save(folder / f"{number}.png")
        rows.append({"image_id": str(number), "path": f"{number}.png", "split": "test", "attributes": values})
    rows.append({"image_id": "other", "path": "none.png", "split": "train", "attributes": {"side": "up"}})
    return write_manifest(
        folder / "m", name="t", source="s", licence="l", image_root=folder, images=rows, texts=[]
    )


def test_by_hand(tmp_path: Path) -> None:
    found = manifest(
        tmp_path,
        [(200, 10), (200, 10), (10, 200), (10, 200)],
        [
            {"side": "left", "light": "dark"},
            {"side": "left"},
            {"side": "left"},
            {"side": "right", "light": "bright"},
        ],
    )
    # side: three of four; light, on the other side of the plane, turns both that have it round.
    assert attribute_accuracy(Told(), found, "test") == {"side": 75.0, "light": 0.0}  # type: ignore[arg-type]


def test_accuracy_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    images, prompts, truth = rng.normal(size=(50, 6)), rng.normal(size=(4, 6)), rng.integers(-1, 4, 50)
    right = counted = 0
    for image, answer in zip(images, truth, strict=True):
        cosines = [image @ p / np.linalg.norm(p) for p in prompts]
        counted += answer >= 0
        right += answer >= 0 and int(np.argmax(cosines)) == answer
    found = accuracy(torch.tensor(images), torch.tensor(prompts), truth.tolist())
    assert found == pytest.approx(100 * right / counted)


def test_constant_rows_score_one_class_and_nan_nothing() -> None:
    assert accuracy(torch.ones(10, 3), torch.ones(2, 3), [0, 1] * 5) == 50.0
    with pytest.raises(VlpipeError, match="not finite"):
        accuracy(torch.full((2, 3), torch.nan), torch.ones(2, 3), [0, 1])


def test_all_items_are_encoded_in_order() -> None:
    items = [ImageItem(str(i), Image.new("RGB", (2, 2), (i % 256, i // 256, 0))) for i in range(600)]
    rows = encoded(Told(), items, "pooled")  # type: ignore[arg-type]
    assert (rows[:, 0] + 256 * rows[:, 1]).tolist() == list(range(600))
    assert encoded(Told(), [TextItem("a", "dark")], "pooled").tolist() == [[-1.0, 0.0]]  # type: ignore[arg-type]


def test_a_split_without_attributes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VlpipeError, match="no image of the split 'val' with attributes"):
        attribute_accuracy(Told(), manifest(tmp_path, [(1, 2)], [{}]), "val")  # type: ignore[arg-type]
