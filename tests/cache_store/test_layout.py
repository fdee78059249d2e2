"""Names and sizes on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlpipe.cache_store.fingerprint import differences
from vlpipe.cache_store.layout import (
    LEAST_ROWS,
    ArraySpec,
    check_output_name,
    default_block_rows,
    default_chunk_rows,
    power_of_two,
    slug,
    store_path,
)
from vlpipe.foundation.errors import UsageError

MIB = 1 << 20


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("hf:facebook/dinov2-small", "hf-facebook--dinov2-small"),
        ("hf:/models/of/mine/dino/", "hf-dino"),
        ("hf:./dino", "hf-dino"),
        ("hf:~/dino", "hf-dino"),
        ("open_clip:ViT-B-16@laion2b_s34b_b88k", "open_clip-ViT-B-16@laion2b_s34b_b88k"),
        ("bundled:mad-clip", "bundled-mad-clip"),
        ("mine", "mine"),
        ("hf-facebook--dinov2-small", "hf-facebook--dinov2-small"),
    ],
)
def test_slug(spec: str, expected: str) -> None:
    assert slug(spec) == expected


def test_store_path() -> None:
    path = store_path(Path("cache"), "0123456789abcdef" * 4, "hf:a/b", "text")
    assert path == Path("cache/0123456789ab/hf-a--b.text.zarr")


@pytest.mark.parametrize("name", ["status", "content_hash", "", "a/b", "..", ".hidden", "__x", "ä"])
def test_an_output_that_cannot_be_a_folder_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="output"):
        check_output_name(name)


@pytest.mark.parametrize("name", ["pooled", "tokens", "layer_06.mean", "layer_-1"])
def test_output_names(name: str) -> None:
    check_output_name(name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "int8", ""])
def test_other_dtypes_are_refused(dtype: str) -> None:
    with pytest.raises(UsageError, match="float16 or float32"):
        ArraySpec((3,), dtype)


def test_empty_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        ArraySpec((3, 0))


@pytest.mark.parametrize(
    ("rows", "widest", "expected"),
    [
        (3_750, ArraySpec((256, 384)), 128),  # 24 MiB of tokens
        (2_000_000, ArraySpec((256, 384)), 1024),  # 192 MiB; 384 numbers make chunk files of 768 KiB
        (2_000_000, ArraySpec((256, 1024)), 512),
        (2_000_000, ArraySpec((384,)), 16_384),
        (2_000_000, ArraySpec((4096, 65536)), 1),  # one row is over the bound
    ],
)
def test_blocks_leave_room_for_the_widest_output(rows: int, widest: ArraySpec, expected: int) -> None:
    assert default_block_rows(rows, [ArraySpec((384,))], widest.row_bytes) == expected


@pytest.mark.parametrize(
    ("rows", "outputs", "expected"),
    [
        (200_000, [ArraySpec((768,))], 8192),  # 6,250 rows wanted; 8,192 x 1,536 bytes are 12 MiB
        (2_000_000, [ArraySpec((768,))], 8192),  # 62,500 wanted, one 16 MiB chunk holds 8,192
        (3_750, [ArraySpec((384,))], 128),  # 117 wanted
        (1_000, [ArraySpec((384,))], 64),  # 31 wanted
        (50, [ArraySpec((384,))], 64),
        (10**9, [ArraySpec(())], 16_384),
        (3, [ArraySpec((384,))], 4),
        (1, [ArraySpec((384,))], 1),
        (200_000, [ArraySpec((196, 512)), ArraySpec((512,))], 1024),  # 201 KB a row, 256 MiB a block
        (10_000, [ArraySpec((4096, 4096))], 8),  # 32 MiB a row
    ],
)
def test_rows_per_block(rows: int, outputs: list[ArraySpec], expected: int) -> None:
    assert default_block_rows(rows, outputs) == expected


@pytest.mark.parametrize(
    ("rows", "expected"), [(18_750, 1024), (200_000, 8192), (1_000, 1024), (200, 256), (2_000_000, 16_384)]
)
def test_texts_come_in_blocks_that_sorting_by_length_needs(rows: int, expected: int) -> None:
    assert default_block_rows(rows, [ArraySpec((384,))], least=LEAST_ROWS["text"]) == expected


shapes = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 3000)).map(ArraySpec), min_size=1, max_size=4)


@given(st.integers(1, 10**8), shapes, st.integers(0, 256 * MIB))
def test_blocks_and_chunks_keep_their_bounds(rows: int, outputs: list[ArraySpec], widest: int) -> None:
    block = default_block_rows(rows, outputs, widest)
    assert block * widest <= 256 * MIB
    assert block == power_of_two(block) < max(2, 2 * rows)
    assert block * sum(output.row_bytes for output in outputs) <= 256 * MIB
    for output in outputs:
        chunk = default_chunk_rows(block, output.row_bytes)
        assert block % chunk == 0
        assert chunk * output.row_bytes <= 16 * MIB
        assert chunk == block or 2 * chunk * output.row_bytes > 16 * MIB


def test_differences_name_every_field() -> None:
    assert differences({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "4", "d": "5"}) == [
        "b: cached '2', asked '4'",
        "c: cached '3', asked nothing",
        "d: cached nothing, asked '5'",
    ]
