"""An epoch's batches: rows fetched for several at once, to the bit those of each batch by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vlpipe.cache_store.layout import Status
from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads import data as joining
from vlpipe.heads.contracts import Batch, Role, Source
from vlpipe.heads.data import Joined
from vlpipe.heads.opening import Opener
from vlpipe.heads.tables import Tables

World = Any
Maker = Callable[..., World]
ROLES = {
    "image": Role("image"),
    "text": Role("text"),
    "view": Role("text", per_image=2),
    "negative": Role("text", "hard_negative", per_image=2, optional=True, of="text"),
}


def texts(images: int) -> list[dict[str, Any]]:
    """Three captions an image, with 0 to 2 negatives each."""
    rows: list[dict[str, Any]] = []
    for n in range(images):
        for k in range(3):
            own = {"text_id": f"t{n}.{k}", "text": f"caption {n} {k}", "image_id": f"i{n}", "role": "caption"}
            rows.append(own)
            for j in range((n + k) % 3):
                wrong = {"text_id": f"t{n}.{k}#{j}", "text": f"wrong {n} {k} {j}", "role": "hard_negative"}
                rows.append(wrong | {"image_id": f"i{n}", "source_text_id": f"t{n}.{k}"})
    return rows


def joined(made: World, roles: dict[str, Role] = ROLES, source: str = "enc:a") -> Joined:
    given = {name: Source(source) for name in roles}
    return Opener(made.manifest.folder, made.cache, made.runs).joined(roles, given)


def assert_same(ours: Batch, wanted: Batch) -> None:
    assert list(ours.ids) == list(wanted.ids)
    assert dict(ours.columns) == dict(wanted.columns)
    for found, expected in ((ours.x, wanted.x), (ours.mask, wanted.mask)):
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert found[name].shape == tensor.shape
            assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("stretch", [1, 2000, 8 << 20])  # bytes: one batch at a time, two, all
@pytest.mark.parametrize("size", [1, 7, 40, 64])
def test_they_are_those_of_each_batch_alone(
    world: Maker, monkeypatch: pytest.MonkeyPatch, stretch: int, size: int
) -> None:
    monkeypatch.setattr(joining, "STRETCH_BYTES", stretch)
    made = world(images=40, texts=texts(40), splits=("train",), dtype="float16")
    data = joined(made)
    order = np.random.default_rng(3).permutation(data.images("train"))
    found = list(data.training_batches(order, size, 5, 2))
    assert len(found) == -(-40 // size)
    for number, batch in enumerate(found):
        assert_same(batch, data.training_batch(order[number * size : (number + 1) * size], 5, 2))


def test_several_are_fetched_at_once_but_no_more_than_fit(world: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    data = joined(world(images=40, texts=texts(40), splits=("train",)))
    fetched: list[int] = []
    original = Joined.training_batch

    def counted(self: Joined, positions: Any, seed: int, epoch: int) -> Batch:
        fetched.append(len(positions))
        return original(self, positions, seed, epoch)

    monkeypatch.setattr(Joined, "training_batch", counted)
    each = 4 * 6 * (1 + 1 + 2 + 2)  # bytes of an image's rows
    for room, expected in ((1, [4] * 10), (9 * each, [8] * 5), (100 * each, [40])):
        fetched.clear()
        monkeypatch.setattr(joining, "STRETCH_BYTES", room)
        list(data.training_batches(data.images("train"), 4, 0, 0))
        assert fetched == expected


def test_roles_as_wide_as_their_batch_are_not_made_wider(world: Maker) -> None:
    rows = texts(12) + [
        {"text_id": f"x{k}", "text": "more", "image_id": "i3", "role": "caption"} for k in range(9)
    ]
    data = joined(
        world(images=12, texts=rows, splits=("train",)),
        {"image": Role("image"), "text": Role("text", per_image=None)},
    )
    widths = [batch.x["text"].shape[1] for batch in data.training_batches(np.arange(12), 3, 0, 0)]
    assert widths == [3, 12, 3, 3]


def test_what_finished_runs_make_of_rows_is_made_batch_by_batch(world: Maker) -> None:
    made = world()
    data = joined(made, {"image": Role("image"), "text": Role("text")})
    data.sources["image"].through = [lambda rows, side: rows + len(rows)]  # type: ignore[assignment, list-item]
    batches = list(data.training_batches(data.images("train"), 8, 0, 0))
    for batch, size in zip(batches, (8, 8, 4), strict=True):
        positions = [int(name[1:]) for name in batch.ids]
        raw = made.arrays["enc:a", "image"][positions].astype(np.float32)
        np.testing.assert_allclose(batch.x["image"], raw + size, rtol=1e-6)


def test_texts_are_looked_up_only_when_a_head_reads_them(world: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    data = joined(world(images=40, texts=texts(40), splits=("train",)))
    asked: list[int] = []
    original = Tables.texts

    def counted(self: Tables, positions: Any) -> list[str]:
        asked.append(len(positions))
        return original(self, positions)

    monkeypatch.setattr(Tables, "texts", counted)
    batches = list(data.training_batches(data.images("train"), 8, 0, 0))
    assert asked == []
    assert "text" in batches[1].columns
    assert list(batches[1].columns) == ["label", "text", "view", "negative"]
    assert batches[1].columns["text"] is batches[1].columns["text"]
    assert asked == [8]


@pytest.mark.parametrize(
    ("parent", "told"),
    [
        (
            Role("text", per_image=3),
            r"'negative'.*drawn for role 'text'.*'text' has 3 texts an image.*per_image=1",
        ),
        (Role("text", per_image=None), "'text' has all texts an image"),
        (Role("image"), "expected the name of a text role before it, one of image, text"),
        (None, "expected the name of a text role before it, one of image"),
    ],
)
def test_texts_of_another_roles_text_need_one_of_it(world: Maker, parent: Role | None, told: str) -> None:
    made = world(images=6, texts=texts(6))
    first = {"image": Role("image")} | ({} if parent is None else {"text": parent})
    with pytest.raises(VlpipeError, match=told):
        joined(made, first | {"negative": Role("text", "hard_negative", of="text")})


def test_failed_rows_of_an_optional_role_are_zeros_there_too(world: Maker) -> None:
    rows = texts(12)
    made = world(images=12, texts=rows, splits=("train",))
    failed = [Status.FAILED if row["role"] == "hard_negative" else Status.OK for row in rows]
    made.store("enc:b", "text", made.arrays["enc:a", "text"], status=failed)
    made.store("enc:b", "image", made.arrays["enc:a", "image"])
    for batch in joined(made, source="enc:b").training_batches(np.arange(12), 4, 0, 0):
        assert not batch.x["negative"].any()
        assert not batch.mask["negative"].any()
