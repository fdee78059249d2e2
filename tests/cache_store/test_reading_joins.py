"""Rows of two sets that belong together, against a plain dictionary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from vlpipe.cache_store.errors import RowsError, StaleCacheError
from vlpipe.cache_store.joins import join
from vlpipe.cache_store.layout import ArraySpec
from vlpipe.cache_store.reader import FeatureSet, open_features
from vlpipe.foundation.errors import UsageError

SPEC = {"pooled": ArraySpec((5,))}
TEXTS = 60


@pytest.fixture(scope="module")
def images(sample: Any, tmp_path_factory: pytest.TempPathFactory) -> FeatureSet:
    path: Path = tmp_path_factory.mktemp("joins") / "i.image.zarr"
    sample.fill(sample.open_writer(path, SPEC), SPEC, status=sample.statuses(failed=[9]))
    return open_features(path)


def texts(sample: Any, path: Path, **changed: Any) -> FeatureSet:
    names = [f"text {row}" for row in range(TEXTS)]
    writer = sample.open_writer(path, SPEC, **{"rows": TEXTS, "side": "text", "ids": names, **changed})
    status = sample.statuses(len(writer.ids), failed=[3])
    sample.fill(writer, SPEC, rows=len(writer.ids), status=status)
    return open_features(path)


def test_captions_to_images(sample: Any, images: FeatureSet, tmp_path: Path) -> None:
    captions = texts(sample, tmp_path / "t.zarr")
    draw = np.random.default_rng(0)
    ids = images.ids
    keys = [None if row % 11 == 5 else ids[draw.integers(0, 37)] for row in range(TEXTS)]
    where = {name: row for row, name in enumerate(ids)}
    wanted = [
        (where[key], row) for row, key in enumerate(keys) if key is not None and row != 3 and where[key] != 9
    ]
    assert any(key == ids[9] for key in keys)
    column = pa.chunked_array([keys[:7], keys[7:]])
    for given in (keys, pa.array(keys), column, column.dictionary_encode()):
        pairs = join(images, captions, given)
        assert list(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)) == wanted
        assert len(pairs) == len(wanted)
    left, right = pairs.take()
    np.testing.assert_array_equal(left, sample.values("pooled")[pairs.left].astype(np.float16))
    np.testing.assert_array_equal(right, sample.values("pooled", TEXTS)[pairs.right].astype(np.float16))
    for some in (slice(2, 5), np.array([4, 0]), np.arange(len(pairs)) == 1):
        np.testing.assert_array_equal(pairs.take(some)[0], left[some])
        np.testing.assert_array_equal(pairs.take(some)[1], right[some])


def test_encoder_to_encoder(sample: Any, images: FeatureSet, tmp_path: Path) -> None:
    other = sample.open_writer(tmp_path / "o.zarr", SPEC)
    sample.fill(other, SPEC, blocks=[0, 1, 3], status=sample.statuses(failed=[2]))
    pairs = join(images, open_features(tmp_path / "o.zarr"))
    wanted = sorted({*range(16), *range(24, 32)} - {2, 9})
    assert pairs.left.tolist() == pairs.right.tolist() == wanted


def test_same_ids_in_another_order(sample: Any, images: FeatureSet, tmp_path: Path) -> None:
    names = sample.ids()[::-1]
    sample.fill(sample.open_writer(tmp_path / "o.zarr", SPEC, ids=names), SPEC)
    pairs = join(images, open_features(tmp_path / "o.zarr"))
    assert pairs.left.tolist() == [row for row in range(36, -1, -1) if row != 9]
    assert pairs.right.tolist() == [row for row in range(37) if row != 27]


def test_no_keys_no_pairs(sample: Any, images: FeatureSet, tmp_path: Path) -> None:
    pairs = join(images, texts(sample, tmp_path / "t.zarr"), [None] * TEXTS)
    assert len(pairs) == 0
    assert [rows.shape for rows in pairs.take()] == [(0, 5), (0, 5)]


def test_what_cannot_be_joined(sample: Any, images: FeatureSet, tmp_path: Path) -> None:
    captions = texts(sample, tmp_path / "t.zarr")
    with pytest.raises(UsageError, match="give keys, the image id of each text"):
        join(images, captions)
    with pytest.raises(RowsError, match="2 keys for the 60 rows"):
        join(images, captions, ["a", "b"])
    with pytest.raises(RowsError, match=r"1 of 60 ids are not in the store, first \['nobody'\]"):
        join(images, captions, [*images.ids, *images.ids[:22], "nobody"])
    foreign = texts(sample, tmp_path / "f.zarr", manifest="f" * 64)
    with pytest.raises(StaleCacheError, match=f"of manifest {'m' * 64}, .* of {'f' * 64}"):
        join(images, foreign, [images.ids[0]] * TEXTS)


def test_ids_as_tables_give_them(sample: Any, images: FeatureSet) -> None:
    column = pa.chunked_array([images.ids[5:7], images.ids[:1]])
    for given in (column, column.combine_chunks(), column.dictionary_encode(), np.array(column.to_pylist())):
        assert images.positions(given).tolist() == [5, 6, 0]
    for wrong in ([1, 2], np.array([1.5])):
        with pytest.raises(RowsError, match="expected texts"):
            images.positions(wrong)
    with pytest.raises(RowsError, match=r"the one text 'set a/.*' given, expected a list"):
        images.positions(images.ids[0])
    with pytest.raises(RowsError, match="expected texts"):
        join(images, images, list(range(len(images))))
