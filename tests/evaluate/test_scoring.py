from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from vlpipe.evaluate import scoring
from vlpipe.evaluate.asked import Asked
from vlpipe.evaluate.contracts import Inputs
from vlpipe.evaluate.scoring import as_float64, inputs_of
from vlpipe.evaluate.tasks.retrieval import Retrieval
from vlpipe.foundation.errors import UnknownNameError, VlpipeError
from vlpipe.heads.contracts import Batch
from vlpipe.heads.kinds.identity import Identity
from vlpipe.heads.runs import Run, open_joined

Maker = Callable[..., Any]


class Everything(Identity):
    """Identity, with temperatures of each text's own and maps."""

    def temperature(self, texts: Batch) -> Tensor:
        return 1 + texts.x["text"][:, 0].abs()

    def maps(self, images: Batch, texts: Batch) -> Tensor:
        return images.x["image"] * texts.x["text"]


class Columns(Retrieval):
    """Retrieval that reads columns."""

    columns: ClassVar[tuple[str, ...]] = ("group_id", "source_text_id", "attributes")
    image_columns: ClassVar[tuple[str, ...]] = ("label", "attributes")


def opened(made: Any, kind: str, task: Any = None, **settings: Any) -> tuple[Any, Any, Inputs]:
    run = Run.open(made.runs, made.train(kind, **settings))
    head, joined = run.head().double(), open_joined(run)
    task = task or Retrieval(Retrieval.Config())
    asked = Asked.of(joined, "test", task.roles, run.manifest)
    return head, joined, inputs_of(head, asked, task, run.manifest)


def test_pairs_temperatures_and_maps_are_the_heads_own(place: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = place(images=20)
    head, joined, inputs = opened(made, f"{__name__}:Everything")
    rng = np.random.default_rng(1)
    pairs = rng.integers(0, 10, 23), rng.integers(0, 30, 23)
    with torch.inference_mode():
        images = head.images(as_float64(joined.image_batch(np.arange(1, 20, 2)[pairs[0]])))
        owned = np.flatnonzero(joined.text_image % 2 == 1)
        texts = head.texts(as_float64(joined.text_batch(owned[pairs[1]], "text")))
        every = head.texts(as_float64(joined.text_batch(owned, "text")))
    monkeypatch.setattr(scoring, "BATCH_ROWS", 4)
    assert torch.allclose(inputs.pairs(*pairs), head.score_pairs(images, texts), atol=1e-15)
    maps = inputs.maps(*pairs)
    assert maps is not None
    assert torch.allclose(maps, head.maps(images, texts), atol=1e-15)
    assert torch.allclose(maps.sum(1), inputs.pairs(*pairs), atol=1e-12)
    found = inputs.temperatures(slice(5, 12))
    assert found is not None
    assert torch.allclose(found, head.temperature(every)[5:12], atol=1e-15)
    assert inputs.scores(slice(0, 10), slice(0, 30))[pairs] == pytest.approx(inputs.pairs(*pairs).numpy())
    none = np.zeros(0, dtype=np.int64)
    assert inputs.pairs(none, none).shape == (0,)


def test_nothing_is_encoded_before_it_is_asked_for(place: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = place(images=20)
    read = []
    monkeypatch.setattr(scoring, "_encoded", lambda label, *_: read.append(label))
    opened(made, f"{__name__}:Everything")
    assert read == []


def test_heads_without_temperatures_and_maps(place: Maker) -> None:
    inputs = opened(place(images=20), "ridge", strength=1.0)[2]
    one = np.zeros(1, dtype=np.int64)
    for found in (inputs, Inputs([], [], one, inputs.scores)):
        assert found.temperatures(slice(0, 1)) is None
        assert found.maps(one, one) is None
    assert inputs.pairs(one, one).shape == (1,)
    assert found.zeros() == {}
    with pytest.raises(VlpipeError, match="no scores of pairs"):
        found.pairs(one, one)


def test_columns_are_those_of_the_rows(place: Maker) -> None:
    made = place(images=20)
    inputs = opened(made, f"{__name__}:Everything", Columns(Columns.Config()))[2]
    texts = [int(text.removeprefix("t")) for text in inputs.text_ids]
    assert inputs.columns["group_id"] == [f"g{n % 5}" for n in texts]
    assert inputs.columns["source_text_id"] == [None] * 30
    assert inputs.columns["attributes"] == [{"tone": f"a{n}"} for n in texts]
    assert inputs.columns["role"] == ["caption"] * 30
    assert inputs.image_columns["label"] == [f"l{n % 3}" for n in range(1, 20, 2)]
    assert inputs.image_columns["attributes"] == [{"hue": f"h{n}"} for n in range(1, 20, 2)]
    with pytest.raises(UnknownNameError, match="'attributes'"):
        scoring.columns_at(made.manifest.folder, "text", ("attribute",), np.arange(2))
