"""Regions: what is let in, what comes back, and that a manifest without them is what it was."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.files import canonical_json
from vlpipe.manifests.check import check
from vlpipe.manifests.digest import TableDigest
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.regions import mask_pixels, run_lengths
from vlpipe.manifests.schema import REGIONS
from vlpipe.manifests.writer import write_manifest

IMAGES = [{"image_id": name, "path": f"{name}.jpg"} for name in "ab"]
TEXTS = [{"text_id": f"{name}#0", "text": "a cat", "image_id": name, "role": "phrase"} for name in "ab"]
BOX = {"region_id": "r0", "text_id": "a#0", "image_id": "a", "boxes": [[1, 2, 3.5, 4], [0, 0, 0, 9]]}
RUNS = {"height": 2, "width": 3, "counts": [1, 2, 3]}
MASK = {"region_id": "r1", "image_id": "b", "mask": RUNS, "label": "cat", "attributes": {"k": "v"}}


def write(folder: Path, regions: Any = (BOX, MASK), **more: Any) -> Manifest:
    described = {"name": "n", "source": "s", "licence": "l", "image_root": folder} | more
    return write_manifest(folder, images=IMAGES, texts=TEXTS, regions=regions, **described)


def test_regions_come_back_as_they_were_given(tmp_path: Path) -> None:
    manifest = write(tmp_path / "m")
    manifest.verify()
    blank = {"text_id": None, "label": None, "boxes": None, "mask": None, "attributes": []}
    assert manifest.table("region").to_pylist() == [
        blank | BOX,
        blank | MASK | {"attributes": [("k", "v")]},
    ]
    assert manifest.count("region") == 2
    (batch,) = manifest.batches("region", ["boxes", "mask"], 5)
    assert batch.to_pylist()[1] == {"boxes": None, "mask": RUNS}
    found = tomllib.loads((tmp_path / "m" / "manifest.toml").read_text())
    assert found["counts"] == {"images": 2, "texts": 2, "regions": 2}
    assert set(found["splits"]) == {"images", "texts"}
    assert "regions.parquet" in found["files"]


def test_without_regions_there_is_no_table_and_the_digest_is_that_of_two(tmp_path: Path) -> None:
    bare = write(tmp_path / "m", ())
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "images.parquet",
        "manifest.toml",
        "texts.parquet",
    ]
    assert bare.count("region") == 0
    assert bare.table("region", ["label", "mask"]).schema.names == ["label", "mask"]
    assert list(bare.batches("region", ["boxes"], 3)) == []
    assert "regions" not in bare.description.counts
    full = write(tmp_path / "m", overwrite=True)
    assert full.digest != bare.digest
    assert write(tmp_path / "m", (), overwrite=True).digest == bare.digest
    assert not (tmp_path / "m" / "regions.parquet").exists()


def test_digest_of_regions_is_what_its_description_says(tmp_path: Path) -> None:
    """An independent computation of the columns `boxes` and `mask`."""
    digest = TableDigest(REGIONS)
    write(tmp_path / "m")
    for batch in pq.ParquetFile(tmp_path / "m" / "regions.parquet").iter_batches(1):
        digest.update(batch)

    def sha(values: list[float], kind: str) -> str:
        return hashlib.sha256(np.array(values, kind).tobytes()).hexdigest()

    boxes = [sha([2, -1], "<i8"), sha([4, 4], "<i8"), sha([1, 2, 3.5, 4, 0, 0, 0, 9], "<f8")]
    mask = [sha([0, 1], "<i8"), sha([0, 2], "<i8"), sha([0, 3], "<i8"), sha([-1, 3], "<i8"), sha([1, 2, 3], "<i8")]
    assert (digest.parts()["boxes"], digest.parts()["mask"]) == (boxes, mask)


def changed(region: dict[str, Any], **change: Any) -> dict[str, Any]:
    return region | change


CHANGES = [
    [MASK, BOX],
    [BOX],
    [changed(BOX, boxes=[[1, 2, 3.5, 4]]), MASK],
    [changed(BOX, boxes=[[0, 0, 0, 9], [1, 2, 3.5, 4]]), MASK],
    [changed(BOX, image_id=None), MASK],
    [changed(BOX, label="x"), MASK],
    [BOX, changed(MASK, mask={"height": 3, "width": 2, "counts": [1, 2, 3]})],
    [BOX, changed(MASK, mask={"height": 2, "width": 3, "counts": [1, 3, 2]})],
]


def test_every_change_changes_the_digest_and_the_reading_does_not(tmp_path: Path) -> None:
    digests = {write(tmp_path / str(n), change).digest for n, change in enumerate(CHANGES)}
    assert len({*digests, write(tmp_path / "m").digest}) == len(CHANGES) + 1
    parts = []
    for rows in (1, 7, 60):
        many = [changed(BOX, region_id=str(n), boxes=[[n, 0, n + 1, 1]] * (n % 3 + 1)) for n in range(20)]
        many += [changed(MASK, region_id=f"m{n}") for n in range(20)]
        manifest = write(tmp_path / "many", many)
        digest = TableDigest(REGIONS)
        for batch in manifest.batches("region", REGIONS.schema.names, rows):
            digest.update(batch)
        parts.append(canonical_json(digest.parts()))
    assert len(set(parts)) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"text_id": None, "image_id": None},
            r"regions row 1 \(region_id 'r0'\): columns 'text_id'",
        ),
        ({"boxes": None}, "'boxes' and 'mask' are both missing"),
        ({"mask": RUNS}, "both given"),
        ({"boxes": []}, "at least one"),
        ({"boxes": [1, 2, 3, 4]}, r"holds 1; expected four finite numbers"),
        ({"boxes": [[1, 2, 3]]}, r"holds \[1, 2, 3\]"),
        ({"boxes": [[1, 2, 3, "4"]]}, "expected four finite numbers"),
        ({"boxes": [[1, 2, 3, float("nan")]]}, "expected four finite numbers"),
        ({"boxes": [[5, 2, 3, 4]]}, "ends before it begins.*not .x, y, width, height"),
        ({"boxes": None, "mask": {"height": 1}}, "expected a table of height, width, counts"),
        ({"boxes": None, "mask": RUNS | {"counts": [1, 2]}}, "runs of 3 pixels for 2 x 3"),
        ({"boxes": None, "mask": RUNS | {"counts": [-1, 7]}}, "whole numbers from 0"),
        ({"boxes": None, "mask": RUNS | {"counts": "123"}}, "whole numbers from 0"),
        ({"boxes": None, "mask": RUNS | {"height": 0, "counts": []}}, "must fill the picture"),
        ({"image_id": "z"}, "image_id 'z' is none of the 2 rows of images.parquet"),
        ({"text_id": "z"}, "text_id 'z' is none of the 2 rows of texts.parquet"),
        ({"region_id": "r1"}, "regions rows 1 and 2 have the same region_id 'r1'"),
        ({"box": 1}, "did you mean 'boxes'"),
    ],
)
def test_a_wrong_region_is_named_and_nothing_is_left(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(VlpipeError, match=message):
        write(tmp_path / "m", [BOX | change, MASK])
    assert not (tmp_path / "m").exists()


def test_check_names_a_region_whose_text_has_another_image(tmp_path: Path) -> None:
    report = check(write(tmp_path / "m"))
    assert (report.numbers["regions"], report.numbers["region_mismatches"]) == (2, 0)
    report = check(write(tmp_path / "n", [BOX | {"image_id": "b"}, MASK]))
    assert any(line.startswith("1 regions have another image than their text: r0") for line in report.errors)


def loop_runs(mask: npt.NDArray[np.bool_]) -> list[int]:
    """COCO's run lengths, pixel by pixel."""
    counts, inside = [0], False
    for x in range(mask.shape[1]):
        for y in range(mask.shape[0]):
            if bool(mask[y, x]) != inside:
                counts.append(0)
                inside = not inside
            counts[-1] += 1
    return counts


@given(st.integers(1, 5), st.integers(1, 5), st.randoms(use_true_random=False))
def test_run_lengths_against_a_loop(height: int, width: int, random: Any) -> None:
    mask = np.array([random.random() < 0.5 for _ in range(height * width)]).reshape(height, width)
    found = run_lengths(mask)
    assert found == {"height": height, "width": width, "counts": loop_runs(mask)}
    np.testing.assert_array_equal(mask_pixels(found), mask)


def test_run_lengths_by_hand() -> None:
    mask = np.array([[0, 1, 1], [1, 1, 0]], dtype=bool)  # columns: 0 1 | 1 1 | 1 0
    assert run_lengths(mask)["counts"] == [1, 4, 1]
    assert run_lengths(np.ones((2, 2), bool))["counts"] == [0, 4]
    assert run_lengths(np.zeros((2, 2), bool))["counts"] == [4]
    with pytest.raises(VlpipeError, match="neither of them 0"):
        run_lengths(np.zeros((0, 3), bool))
