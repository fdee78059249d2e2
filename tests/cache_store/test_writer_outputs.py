"""Writers of different outputs over one store: what each says is missing, failed and cached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlpipe.cache_store.errors import RowsError, StaleCacheError
from vlpipe.cache_store.layout import ArraySpec
from vlpipe.cache_store.opening import stored_dtype

POOLED = {"pooled": ArraySpec((5,))}
TOKENS = {"tokens": ArraySpec((3, 2), "float32")}
PRINTS = {"tokens": {"weights": "w1", "precision": "float32"}}


@pytest.fixture
def half(sample: Any, store: Path) -> Path:
    """All of `pooled` with row 9 failed, blocks 0 and 1 of `tokens` with row 3 failed."""
    sample.fill(sample.open_writer(store, POOLED), ["pooled"], status=sample.statuses(failed=[9]))
    sample.fill(sample.open_writer(store, TOKENS), ["tokens"], blocks=[0, 1], status=sample.statuses(failed=[3]))
    return store


def test_each_block_names_the_outputs_that_it_has(sample: Any, half: Path) -> None:
    writer = sample.open_writer(half, POOLED)
    assert [writer.outputs_of(block) for block in range(5)] == 2 * [{"pooled", "tokens"}] + 3 * [{"pooled"}]
    (half / "status" / "blocks" / "1.json").write_text("{")
    (half / "status" / "blocks" / "2.json").unlink()
    assert [writer.outputs_of(block) for block in (1, 2)] == [set(), set()]


def test_failed_and_content_are_those_of_all_outputs(sample: Any, half: Path) -> None:
    kept = sample.hashes()
    kept[[3, 9]] = 0
    for outputs in (POOLED, TOKENS):
        writer = sample.open_writer(half, outputs)
        assert writer.failed().tolist() == [3, 9]
        np.testing.assert_array_equal(writer.content(), kept)


def test_missing_among_some_blocks(sample: Any, half: Path) -> None:
    writer = sample.open_writer(half, TOKENS)
    assert writer.missing([0, 3]) == [3]
    assert writer.missing([4, 1]) == [4]
    sample.fill(sample.open_writer(half, TOKENS), ["tokens"], blocks=[3, 4])
    for block in (3, 4):  # both were listed: another writer was faster
        with writer.claim(block) as mine:
            assert not mine


def test_a_writer_of_other_outputs_of_the_same_store(sample: Any, half: Path) -> None:
    writer = sample.open_writer(half, POOLED)
    other = writer.of({"tokens": ArraySpec((3, 2), stored_dtype(half, "tokens"))}, PRINTS)
    assert other.missing() == [2, 3, 4]
    assert sample.fill(other, ["tokens"]) == [2, 3, 4]
    with pytest.raises(StaleCacheError, match=r"tokens\.dtype: cached 'float32', asked 'float16'"):
        writer.of({"tokens": ArraySpec((3, 2))}, PRINTS)


@pytest.mark.parametrize(("ids", "says"), [("aba", "id 'a' stands at rows 0 and 2"), ("cbbb", "rows 1 and 2")])
def test_repeated_ids_are_named(sample: Any, store: Path, ids: str, says: str) -> None:
    with pytest.raises(RowsError, match=says):
        sample.open_writer(store, ids=list(ids))
