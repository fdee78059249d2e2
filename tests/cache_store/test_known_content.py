"""The index of known content against a plain search, and what it costs."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from vlpipe.cache_store import known
from vlpipe.cache_store.known import KnownContent, _Index

ROWS, BLOCKS = 24, (0, 1, 2)  # of 8 rows


def hashes_of(contents: list[int], same_begin: bool = False) -> NDArray[np.uint8]:
    """A content hash each; on request all agree in the 8 bytes that the index looks at."""
    keys = [b"" if same_begin else bytes([content] * 8) for content in contents]
    parts = [key.rjust(8, b"k") + bytes([content] * 8) for key, content in zip(keys, contents, strict=True)]
    return np.frombuffer(b"".join(parts), np.uint8).reshape(-1, 16)


def is_row(sample: Any, found: known.KnownRow, row: int) -> bool:
    """Whether what was found is this row of the sample, in every output."""
    rows = {name: sample.values(name, ROWS)[row].astype(spec.dtype) for name, spec in sample.OUTPUTS.items()}
    return all(np.array_equal(rows[name], found.rows[name]) for name in rows)


@settings(max_examples=25, deadline=None)
@given(
    contents=st.lists(st.integers(0, 12), min_size=ROWS, max_size=ROWS),
    status=st.lists(st.sampled_from([1, 2, 3]), min_size=ROWS, max_size=ROWS),
    order=st.permutations(BLOCKS),
    before=st.integers(0, ROWS),
    recent=st.sampled_from([1, 1 << 16]),
)
def test_what_a_plain_search_finds_is_found_while_blocks_come_in(
    sample: Any,
    tmp_path_factory: pytest.TempPathFactory,
    contents: list[int],
    status: list[int],
    order: list[int],
    before: int,
    recent: int,
) -> None:
    content, kinds = hashes_of(contents), np.array(status, np.uint8)
    writer = sample.open_writer(tmp_path_factory.mktemp("s") / "m" / "e.image.zarr", rows=ROWS)

    def check(index: KnownContent, rows: set[int], before: int = known.EVERYWHERE) -> None:
        for one in range(13):
            right = [row for row in sorted(rows) if contents[row] == one and status[row] != 2 and row < before]
            found = index.find(hashes_of([one])[0].tobytes(), before)
            assert (found is not None) == bool(right)
            if found:
                assert [status[row] for row in right if is_row(sample, found, row)] == [found.status]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known, "RECENT", recent)
        index = KnownContent(writer.donor())
        for step, block in enumerate(order):
            sample.fill(writer, blocks=[block], rows=ROWS, status=kinds, content=content)
            index.add(block)
            check(index, {row for done in order[: step + 1] for row in writer.span(done)})
    check(KnownContent(writer.donor()), set(range(ROWS)), before)


def test_hashes_that_only_begin_alike_are_told_apart(sample: Any, store: Path) -> None:
    """At most one of them is found, and never another's row."""
    content = hashes_of(list(range(ROWS)), same_begin=True)
    writer = sample.open_writer(store, rows=ROWS)
    sample.fill(writer, rows=ROWS, content=content)
    index = KnownContent(writer.donor())
    found = {row: index.find(content[row].tobytes()) for row in range(ROWS)}
    assert is_row(sample, found.pop(0), 0)  # type: ignore[arg-type]
    assert set(found.values()) == {None}


def test_a_row_written_again_is_not_found_under_its_old_content(sample: Any, store: Path) -> None:
    content = hashes_of(list(range(ROWS)))
    writer = sample.open_writer(store, rows=ROWS)
    sample.fill(writer, rows=ROWS, content=content)
    index = KnownContent(writer.donor())
    old = content[3].tobytes()
    assert index.find(old)
    changed = content.copy()
    changed[3] = hashes_of([99])[0]
    sample.fill(writer, blocks=[0], rows=ROWS, content=changed)
    index.add(0)
    assert index.find(old) is None
    assert index.find(changed[3].tobytes())


@pytest.mark.parametrize("open_at_a_time", [1, 512])
def test_what_is_kept_open_is_bounded(
    open_at_a_time: int, sample: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vlpipe.cache_store import donors

    monkeypatch.setattr(donors, "OPEN", open_at_a_time)
    content = hashes_of(list(range(ROWS)))
    writer = sample.open_writer(store, rows=ROWS)
    sample.fill(writer, rows=ROWS, content=content)
    index = KnownContent(writer.donor())
    for row in (*range(ROWS), 0, 20, 3):
        found = index.find(content[row].tobytes())
        assert found
        assert is_row(sample, found, row)
    own = index.donors[0]
    assert len(own._books) == min(open_at_a_time, 3)
    assert len(own._mapped) == min(open_at_a_time, 9)


def test_the_index_is_sixteen_bytes_a_row() -> None:
    rows = 200_000
    content = np.random.default_rng(0).integers(0, 256, (rows, 16), np.uint8)
    tracemalloc.start()
    try:
        index = _Index.of(content, np.arange(rows))
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 17 * rows
    assert peak < 60 * rows
    for row in (0, 7, rows - 1):
        assert index.places_of(content[row, :8].view(np.uint64)[0]) == [row]
