"""The tasks of true and false texts, from a manifest's columns to the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlpipe.evaluate.run import evaluate
from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.writer import write_manifest

Place = Any
KINDS = ("replace_obj", "add_att", "swap_obj")


@pytest.fixture
def contrasted(place: Callable[..., Place], tmp_path: Path) -> Place:
    """Twenty test images: captions near them, hard negatives less near, and groups of two."""
    rng = np.random.default_rng(0)
    made = place()
    x = rng.normal(size=(20, 8))
    y = np.concatenate([x + rng.normal(size=(20, 8)), x + 1.3 * rng.normal(size=(20, 8))])
    captions = [
        {
            "text_id": f"c{n}",
            "text": f"caption {n}",
            "image_id": f"i{n}",
            "role": "caption",
            "group_id": f"g{n // 2}",
            "attributes": {"relation": f"r{n % 4}", "collapsed_tag": "Object" if n < 10 else "Relation"},
        }
        for n in range(20)
    ]
    negatives = [
        {
            "text_id": f"c{n}#negative",
            "text": f"false {n}",
            "role": "hard_negative",
            "source_text_id": f"c{n}",
            "attributes": {"subset": KINDS[n % 3]},
        }
        for n in range(20)
    ]
    manifest = write_manifest(
        tmp_path / "contrasted",
        name="contrasted",
        source="made",
        licence="none",
        image_root=tmp_path,
        images=[{"image_id": f"i{n}", "path": f"{n}.png", "split": "test"} for n in range(20)],
        texts=[*captions, *negatives],
    )
    found = replace(made, manifest=manifest, x=x, y=y)
    found.store("image", x)
    found.store("text", y)
    return found


def cosines(made: Place) -> np.ndarray[Any, Any]:
    """(images, texts), of features as they are stored."""
    x, y = (rows.astype(np.float32).astype(np.float64) for rows in (made.x, made.y))
    found: np.ndarray[Any, Any] = (x / np.linalg.norm(x, axis=1, keepdims=True)) @ (
        y / np.linalg.norm(y, axis=1, keepdims=True)
    ).T
    return found


def value(made: Place, task: str, **options: Any) -> dict[str, Any]:
    done = evaluate(made.runs, made.train(), task, options=options)
    return {name: entry.value for name, entry in done.entries.items()}


def test_hard_negatives_of_a_manifest(contrasted: Place) -> None:
    scores, n = cosines(contrasted), np.arange(20)
    right = scores[n, n] > scores[n, n + 20]
    found = value(contrasted, "compositionality")
    assert found["binary_recall@1"] == pytest.approx(right.mean())
    for place, kind in enumerate(KINDS):
        assert found[f"binary_recall@1:{kind}"] == pytest.approx(right[n % 3 == place].mean())
    assert found["binary_recall@1_macro"] == pytest.approx(np.mean([right[n % 3 == k].mean() for k in range(3)]))
    assert 0 < found["choice5_recall@1"] <= found["binary_recall@1"] < 1


def test_groups_of_a_manifest(contrasted: Place) -> None:
    scores = cosines(contrasted)[:, :20]
    text = [scores[g, g] > scores[g, g + 1] and scores[g + 1, g + 1] > scores[g + 1, g] for g in range(0, 20, 2)]
    image = [scores[g, g] > scores[g + 1, g] and scores[g + 1, g + 1] > scores[g, g + 1] for g in range(0, 20, 2)]
    found = value(contrasted, "winoground")
    assert found["text_score"] == pytest.approx(np.mean(text))
    assert found["image_score"] == pytest.approx(np.mean(image))
    assert found["group_score"] == pytest.approx(np.mean(np.array(text) & np.array(image)))
    assert found["text_score:Object"] == pytest.approx(np.mean(text[:5]))


def test_relations_of_a_manifest(contrasted: Place) -> None:
    scores, n = cosines(contrasted), np.arange(20)
    right = scores[n, n] > scores[n, n + 20]
    found = value(contrasted, "aro", without=["r0"])
    assert found["accuracy"] == pytest.approx(right.mean())
    assert found["accuracy_macro"] == pytest.approx(np.mean([right[n % 4 == k].mean() for k in (1, 2, 3)]))


def test_a_manifest_without_false_texts_is_refused(place: Callable[..., Place]) -> None:
    made = place()
    run = made.train()
    for task, told in (("compositionality", "hard negative"), ("aro", "false text"), ("zero_shot", "prompt")):
        with pytest.raises(VlpipeError, match=told):
            evaluate(made.runs, run, task)
    with pytest.raises(VlpipeError, match="no two captions of two images"):  # groups of more than two
        evaluate(made.runs, run, "winoground")
