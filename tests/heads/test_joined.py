from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vlpipe.cache_store.errors import NotCachedError, StaleCacheError
from vlpipe.cache_store.layout import Status
from vlpipe.foundation.errors import UnknownNameError, UsageError
from vlpipe.heads.contracts import Role, Source
from vlpipe.heads.opening import Opener
from vlpipe.heads.sources import parse_source, parse_sources, spread_sources
from vlpipe.heads.splits import split_of

World = Any
Maker = Callable[..., World]
IMAGE, CAPTION = Role("image"), Role("text", per_image=3)
ROLES = {"image": IMAGE, "text": CAPTION}


def joined(made: World, roles: dict[str, Role] = ROLES, rule: str = "column", **sources: str) -> Any:
    given = {name: Source(sources.get(name, "enc:a")) for name in roles}
    return Opener(made.manifest.folder, made.cache, made.runs).joined(roles, given, rule)


def texts(count: int, each: int, **more: Any) -> list[dict[str, Any]]:
    return [
        {"text_id": f"t{n}.{k}", "text": f"text {n} {k}", "image_id": f"i{n}", "role": "caption", **more}
        for n in range(count)
        for k in range(each)
    ]


def test_every_image_gets_its_own_rows(world: Maker) -> None:
    made = world()
    data = joined(made)
    positions = data.images("train")[::-1]
    batch = data.training_batch(positions, 0, 0)
    assert list(batch.ids) == [f"i{p}" for p in positions]
    np.testing.assert_allclose(batch.x["image"], made.arrays["enc:a", "image"][positions], rtol=1e-6)
    captions = made.arrays["enc:a", "text"].reshape(40, 3, 6)
    for row, position in enumerate(positions):
        own = {tuple(np.float32(c)) for c in captions[position]}
        assert {tuple(c.numpy()) for c in batch.x["text"][row]} == own  # all three, each once
        assert {text.split()[1] for text in batch.columns["text"][row]} == {str(position)}
    assert batch.columns["label"] == [f"l{p % 3}" for p in positions]


def test_splits_are_by_image_and_spelled_alike(world: Maker) -> None:
    data = joined(world(images=8, splits=("train", "validation", "dev", None)))
    assert data.images("train").tolist() == [0, 4]
    assert data.images("val").tolist() == data.images("validation").tolist() == [1, 2, 5, 6]
    assert data.images("test").tolist() == []
    assert len(data.images(None)) == 8


def test_a_draw_depends_on_seed_epoch_and_image_only(world: Maker) -> None:
    data = joined(world(each=4), {"image": IMAGE, "text": Role("text", per_image=2)})
    images = data.images("train")
    whole = data.training_batch(images, 5, 1).columns["text"]
    alone = [data.training_batch(images[k : k + 1], 5, 1).columns["text"][0] for k in range(len(images))]
    assert whole == alone
    assert data.training_batch(images, 5, 2).columns["text"] != whole
    assert data.training_batch(images, 6, 1).columns["text"] != whole


def test_draws_are_uniform_and_without_repeats(world: Maker) -> None:
    data = joined(world(each=4), {"image": IMAGE, "text": Role("text", per_image=2)})
    images = data.images(None)
    drawn = [pair for epoch in range(100) for pair in data.training_batch(images, 0, epoch).columns["text"]]
    assert all(first != second for first, second in drawn)
    counts = np.bincount([int(text.split()[2]) for pair in drawn for text in pair], minlength=4)
    assert abs(counts / counts.sum() - 0.25).max() < 0.02  # 8,000 draws: 4 standard deviations


def test_missing_captions_are_masked(world: Maker) -> None:
    rows = texts(4, 3)
    del rows[4:6]  # image 1 keeps one caption
    data = joined(
        world(images=4, texts=rows, splits=("train",)), {"image": IMAGE, "text": Role("text", per_image=5)}
    )
    batch = data.training_batch(data.images("train"), 0, 0)
    assert batch.x["text"].shape == (4, 5, 6)
    assert batch.mask["text"].sum(1).tolist() == [3, 1, 3, 3]
    assert batch.x["text"][~batch.mask["text"]].abs().max() == 0
    assert batch.x["text"][batch.mask["text"]].abs().min() > 0


def test_all_texts_of_an_image_come_in_manifest_order(world: Maker) -> None:
    rows = texts(4, 3)
    del rows[4:6]
    roles = {"image": IMAGE, "text": Role("text", per_image=None)}
    data = joined(world(images=4, texts=rows[::-1], splits=("train",)), roles)
    batch = data.training_batch(data.images("train"), 0, 0)
    assert batch.columns["text"][0] == ["text 0 2", "text 0 1", "text 0 0"]
    assert batch.columns["text"][1] == ["text 1 0", "", ""]


def test_failed_and_absent_rows_are_left_out_and_counted(world: Maker) -> None:
    made = world(images=6, each=2, splits=("train",))
    status = [Status.OK] * 6
    status[2] = Status.FAILED
    made.store("enc:b", "image", np.ones((6, 4)), status=status)
    status = [Status.OK] * 12
    status[8] = status[9] = Status.FAILED  # both captions of image 4
    status[0] = Status.FAILED
    status[3] = Status.CUT
    rows = np.ones((12, 4))
    rows[[0, 5, 6]] = 0  # 0 has failed and does not count
    made.store("enc:b", "text", rows, status=status)
    data = joined(made, image="enc:b", text="enc:b")
    assert data.images("train").tolist() == [0, 1, 3, 5]
    assert data.training_batch(np.array([0]), 0, 0).mask["text"].sum() == 1
    assert data.texts_of(np.array([0, 1]), ["caption"]).tolist() == [1, 2, 3]
    assert data.counts() == {
        "images": {"train": 4},
        "images_left_out": 2,
        "images_without": {},
        "roles": {
            "image": {"usable": 5, "failed": 1, "absent": 0, "zero": 0},
            "text": {"usable": 9, "failed": 3, "absent": 0, "zero": 2},
        },
    }
    with pytest.raises(NotCachedError, match="'i2' \\(failed\\)"):
        data.image_batch(np.array([2]))


def test_negatives_find_their_image_through_their_source(world: Maker) -> None:
    rows = texts(3, 1)
    rows += [
        {"text_id": "n1", "text": "a negative", "role": "hard_negative", "source_text_id": "t1.0"},
        {"text_id": "v1", "text": "its view", "role": "view:short", "source_text_id": "n1"},
        {"text_id": "p", "text": "a prompt", "role": "prompt"},
    ]
    roles = {
        "image": IMAGE,
        "text": Role("text"),
        "negative": Role("text", kind="hard_negative", per_image=2, optional=True),
    }
    data = joined(world(images=3, texts=rows, splits=("train",)), roles)
    assert data.text_image.tolist() == [0, 1, 2, 1, 1, -1]
    batch = data.training_batch(data.images("train"), 0, 0)
    assert batch.x["text"].shape == (3, 6)
    assert batch.mask["negative"].tolist() == [[False, False], [True, False], [False, False]]
    assert batch.columns["negative"][1] == ["a negative", ""]
    assert data.texts_of(np.array([1]), ["caption", "hard_negative"]).tolist() == [1, 3]


def test_a_required_role_narrows_the_images(world: Maker) -> None:
    rows = texts(3, 1)
    rows.append({"text_id": "n1", "text": "a negative", "role": "hard_negative", "source_text_id": "t1.0"})
    roles = {"image": IMAGE, "text": Role("text"), "negative": Role("text", kind="hard_negative")}
    data = joined(world(images=3, texts=rows, splits=("train",)), roles)
    assert data.images("train").tolist() == [1]
    assert data.counts()["images_without"] == {"hard_negative": 2}


def test_scored_texts_come_under_the_role_asked_for(world: Maker) -> None:
    made = world()
    data = joined(made)
    batch = data.text_batch(np.array([5, 0]), "text")
    assert batch.ids == ["t1.2", "t0.0"]
    assert batch.columns["text"] == ["text 1 2", "text 0 0"]
    np.testing.assert_allclose(batch.x["text"], made.arrays["enc:a", "text"][[5, 0]], rtol=1e-6)


def test_float16_at_rest_is_float32_in_a_batch(world: Maker) -> None:
    data = joined(world(dtype="float16"))
    assert data.training_batch(data.images("train"), 0, 0).x["text"].dtype == torch.float32


def test_random_split_depends_on_ids_and_its_seed_only() -> None:
    ids = [f"i{n}" for n in range(100)]
    parts = split_of("random:0.7/0.1/0.2@3", ids, [None] * 100)
    assert {name: int((parts == name).sum()) for name in ("train", "val", "test")} == {
        "train": 70,
        "val": 10,
        "test": 20,
    }
    turned = split_of("random:0.7/0.1/0.2@3", ids[::-1], [None] * 100)
    assert (turned[::-1] == parts).all()
    assert (split_of("random:0.7/0.1/0.2@4", ids, [None] * 100) != parts).any()


@pytest.mark.parametrize(
    "rule", ["random", "random:0.5/0.2@1", "random:0.5/0.2/0.2@1", "random:0.7/0.1/0.2", "col"]
)
def test_bad_split_rules_say_what_is_right(rule: str) -> None:
    with pytest.raises(UsageError, match=r"random:0.7/0.15/0.15@0"):
        split_of(rule, ["a"], [None])


def test_sources_are_taken_apart() -> None:
    assert parse_source("hf:a/b#cls::ridge-1::tpc-2") == Source("hf:a/b#cls", ("ridge-1", "tpc-2"))
    assert parse_source("hf:a/b") == Source("hf:a/b")
    for bad in ("", "#cls", "a#b#c", "a#b::"):
        with pytest.raises(UsageError, match="SPEC#OUTPUT"):
            parse_source(bad)
    with pytest.raises(UnknownNameError, match="did you mean 'image'"):
        parse_sources(["imag=enc:a"], ROLES)
    with pytest.raises(UsageError, match="role=SPEC#OUTPUT"):
        parse_sources(["enc:a"], ROLES)


def test_a_role_without_a_source_takes_that_of_its_sides_first() -> None:
    roles = ROLES | {"negative": Role("text", kind="hard_negative")}
    found = spread_sources({"image": Source("a#x"), "text": Source("b#y")}, roles)
    assert found["negative"] == Source("b#y")
    with pytest.raises(UsageError, match="'text' has no source"):
        spread_sources({"image": Source("a#x")}, roles)


def test_features_that_are_not_there_name_the_command_that_makes_them(world: Maker) -> None:
    made = world()
    command = f"vlpipe extract --manifest {made.manifest.folder} --encoder enc:z --side image"
    with pytest.raises(NotCachedError, match=command) as caught:
        joined(made, image="enc:z#cls")
    assert f"--output cls --cache {made.cache}" in str(caught.value)
    with pytest.raises(NotCachedError, match=r"outputs there are pooled .*--output cls"):
        joined(made, image="enc:a#cls")


def test_an_output_must_be_named_where_there_are_several(world: Maker) -> None:
    made = world()
    made.store("enc:a", "image", np.ones((40, 2)), "cls")
    with pytest.raises(UsageError, match="enc:a#cls or enc:a#pooled"):
        joined(made)
    assert joined(made, image="enc:a#cls").sources["image"].shape == (2,)


def test_a_store_of_another_manifest_is_refused(world: Maker) -> None:
    made = world()
    made.store("enc:f", "image", np.ones((40, 6)), manifest="f" * 64)
    with pytest.raises(StaleCacheError, match=f"{'f' * 64}.*{made.manifest.digest}.*enc:f --side image") as caught:
        joined(made, image="enc:f")
    assert caught.value.exit_code == 4
    made.store("enc:t", "image", np.ones((40, 6)), turned=True)
    with pytest.raises(StaleCacheError, match="in its order"):
        joined(made, image="enc:t")


def test_images_are_evaluable_without_a_role_that_only_training_reads(world: Maker) -> None:
    made = world(images=4, splits=("train", "test"))
    status = [Status.FAILED] + [Status.OK] * 3
    made.store("enc:b", "image", np.ones((4, 6)), status=status)
    roles = ROLES | {"negative": Role("text", kind="hard_negative")}
    data = joined(made, roles, image="enc:b")
    assert data.images(None).tolist() == []
    assert data.evaluable(None).tolist() == [1, 2, 3]
    assert data.evaluable("test").tolist() == [1, 3]
    assert data.texts_of(data.evaluable("test"), ["caption"]).tolist() == [3, 4, 5, 9, 10, 11]


def test_texts_without_an_image_are_there_when_asked_for(world: Maker) -> None:
    rows = texts(2, 1)
    rows += [{"text_id": f"p{n}", "text": "a prompt", "role": "prompt"} for n in range(2)]
    rows += [{"text_id": "d", "text": "a distractor", "role": "caption"}]
    made = world(images=2, texts=rows)
    made.store("enc:b", "text", np.ones((5, 6)), status=[1, 1, 1, Status.FAILED, 1])
    data = joined(made, text="enc:b")
    first = np.array([0])
    assert data.texts_of(first, ["caption", "prompt"]).tolist() == [0]
    assert data.texts_of(first, ["caption", "prompt"], without_image=True).tolist() == [0, 2, 4]
    assert data.texts_of(first, ["caption"], without_image=True).tolist() == [0, 4]
    assert data.texts_of(np.array([], dtype=np.int64), ["prompt"], without_image=True).tolist() == [2]


def test_a_batch_is_as_wide_as_its_own_images_need(world: Maker) -> None:
    rows = texts(3, 2) + [
        {"text_id": f"more{n}", "text": "one more", "image_id": "i1", "role": "caption"} for n in range(500)
    ]
    roles = {"image": IMAGE, "text": Role("text", per_image=None)}
    data = joined(world(images=3, texts=rows, splits=("train",)), roles)
    assert data.training_batch(np.array([0, 2]), 0, 0).x["text"].shape == (2, 2, 6)
    assert data.training_batch(np.array([0, 1]), 0, 0).x["text"].shape == (2, 502, 6)


def test_a_whole_batch_has_all_texts_whatever_a_step_draws(world: Maker) -> None:
    data = joined(world(images=3), {"image": IMAGE, "text": Role("text")})
    batch = data.whole_batch(np.array([2, 0]))
    assert batch.columns["text"] == [[f"text {n} {k}" for k in range(3)] for n in (2, 0)]
    assert batch.x["text"].shape == (2, 3, 6)
    assert data.whole_batch(np.array([], dtype=np.int64)).x["text"].shape == (0, 1, 6)


def test_what_is_opened_is_shared(world: Maker) -> None:
    made = world()
    opener = Opener(made.manifest.folder, made.cache, made.runs)
    sources = {"image": Source("enc:a"), "text": Source("enc:a")}
    one, other = (opener.joined(ROLES, sources), opener.joined({"image": IMAGE, "text": Role("text")}, sources))
    assert one.sources["text"].features is other.sources["text"].features
    assert one.tables is other.tables
