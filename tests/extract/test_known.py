"""Content that the cache holds already is copied to the bit and never encoded again."""

from __future__ import annotations

import dataclasses
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from toys.fresh import check_fresh, manifest_of, work_done
from toys.mini import captions, counts, job, manifest, store_files

from vlpipe.cache_store.donors import KnownRow
from vlpipe.cache_store.layout import ArraySpec, Status, marker_path
from vlpipe.cache_store.reader import open_features
from vlpipe.extract import decoding
from vlpipe.extract import rows as extract_rows
from vlpipe.extract.job import Job
from vlpipe.extract.load import load_encoder
from vlpipe.extract.run import InterruptedRunError, extract
from vlpipe.manifests.manifest import Manifest

BOTH = ("pooled", "tokens")
OLD = [f"{n:03d}.png" for n in range(100)]
NEW = [f"{n:03d}.png" for n in range(100, 120)]


def grown() -> list[str]:
    """20 rows more in the middle, 5 fewer, in another order."""
    paths = OLD[:40] + NEW + OLD[45:]
    random.Random(3).shuffle(paths)
    return paths


def seen(work: Job) -> int:
    """Rows that the model was given."""
    return sum(work.encoder.batches)  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [1, 4])
def test_a_grown_manifest_keeps_its_old_rows_and_encodes_the_new(
    workers: int, photos: Path, tmp_path: Path
) -> None:
    extract(job(manifest(tmp_path / "m", photos, OLD, []), tmp_path / "c", outputs=BOTH))
    work = job(manifest(tmp_path / "n", photos, grown(), []), tmp_path / "c", outputs=BOTH, workers=workers)
    summary = extract(work)
    assert work_done(summary) == (20, 95, 0)
    assert (seen(work), summary.ok, summary.failed) == (20, 115, 0)
    assert work_done(extract(work)) == (0, 0, 115)
    check_fresh(work, tmp_path / "fresh")


def test_known_texts_keep_that_they_were_cut(photos: Path, tmp_path: Path) -> None:
    texts = captions(100)
    extract(job(manifest(tmp_path / "m", photos, [], texts), tmp_path / "c", "text"))
    more = [*reversed(texts[10:]), "new", "new and long, long, long, long", "bad"]
    work = job(manifest(tmp_path / "n", photos, [], more), tmp_path / "c", "text")
    summary = extract(work)
    assert work_done(summary) == (3, 90, 0)
    assert seen(work) == 2
    assert summary.failed == 1
    status = [Status.CUT if len(text) > 20 else Status.OK for text in more[:-1]]
    assert open_features(work.store, "pooled").status.tolist() == [*status, Status.FAILED]
    check_fresh(work, tmp_path / "fresh")


def test_texts_are_equal_by_their_bytes_only(photos: Path, tmp_path: Path) -> None:
    texts = ["a b", "a b ", "A b", "a  b", "a\u0301", "\u00e1", "a b"]
    work = job(manifest(tmp_path / "m", photos, [], texts), tmp_path / "c", "text")
    assert work_done(extract(work)) == (6, 1, 0)


def test_a_known_picture_is_not_decoded(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extract(job(manifest(tmp_path / "m", photos, OLD, []), tmp_path / "c"))
    decoded = []
    real = decoding.decode
    monkeypatch.setattr(decoding, "decode", lambda data: decoded.append(1) or real(data))
    extract(job(manifest(tmp_path / "n", photos, grown(), []), tmp_path / "c"))
    assert len(decoded) == 20


def test_one_name_in_several_folders_and_copies_under_other_names(photos: Path, tmp_path: Path) -> None:
    """A row goes by its content: neither by its file's name nor by its id."""
    root, paths = tmp_path / "root", []
    for number in range(120):  # in two blocks; six folders hold 20 files of the same names, two of equal content
        path = root / "abcdef"[number % 6] / f"{number // 6}.{'png' if number % 4 else 'PNG'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photos / f"{number // 6 * 6 + min(number % 6, 4):03d}.png", path)
        paths.append(str(path.relative_to(root)))
    random.Random(1).shuffle(paths)
    work = job(manifest(tmp_path / "m", root, paths, []), tmp_path / "c", outputs=BOTH, dtype="float32")
    assert work_done(extract(work)) == (100, 20, 0)
    assert seen(work) == 100
    found = open_features(work.store, "tokens")
    for n, path in enumerate(paths[::10]):
        alone = job(manifest(tmp_path / "one" / str(n), root, [path], []), tmp_path / "x" / str(n), outputs=BOTH)
        extract(dataclasses.replace(alone, dtype="float32"))
        single = open_features(alone.store, "tokens").rows([f"i:{path}"])
        np.testing.assert_array_equal(found.rows([f"i:{path}"]), single)


def repeated(folder: Path, photos: Path) -> Manifest:
    """256 rows of 48 pictures: four blocks of 64, of which the later ones repeat the earlier."""
    return manifest_of(folder, photos, [n % 48 for n in range(256)])


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("batch", [7, 16, 300])
def test_repeats_in_later_blocks_are_encoded_once_whatever_runs_ahead(
    workers: int, batch: int, photos: Path, tmp_path: Path
) -> None:
    work = job(repeated(tmp_path, photos), tmp_path / "c", workers=workers, batch_size=batch)
    assert work_done(extract(work)) == (48, 208, 0)
    assert seen(work) == 48
    check_fresh(dataclasses.replace(work, workers=2), tmp_path / "fresh")


def test_a_block_done_again_has_the_same_batches(photos: Path, tmp_path: Path) -> None:
    """Rows that later blocks share with it are not taken from there: batch mates decide the last bits."""
    found = manifest_of(tmp_path, photos, [*range(64), *range(32, 96)])
    first = job(found, tmp_path / "c")
    extract(first)
    before = store_files(first.store)
    marker_path(first.store, 0).unlink()
    again = job(found, tmp_path / "c")
    assert work_done(extract(again)) == (64, 0, 64)
    assert again.encoder.batches == first.encoder.batches[:4]  # type: ignore[attr-defined]
    marker_path(first.store, 1).unlink()
    assert work_done(extract(job(found, tmp_path / "c"))) == (32, 32, 64)
    assert store_files(first.store) == before


def test_interrupted_among_repeats_then_resumed(photos: Path, tmp_path: Path) -> None:
    found = repeated(tmp_path, photos)
    whole = job(found, tmp_path / "whole")
    extract(whole)
    with pytest.raises(InterruptedRunError):
        extract(job(found, tmp_path / "c", settings={"interrupt_after": 2}))
    rest = job(found, tmp_path / "c")
    extract(rest)
    assert store_files(rest.store) == store_files(whole.store)


@pytest.mark.parametrize(
    "other",
    [{"model": "other"}, {"settings": {"scale": 2.0}}, {"dtype": "float32"}, {"outputs": ("tokens",)}],
    ids=["weights", "precision", "dtype", "output"],
)
def test_rows_of_something_else_are_not_taken(other: dict[str, object], photos: Path, tmp_path: Path) -> None:
    extract(job(manifest(tmp_path / "m", photos, OLD, []), tmp_path / "c", **other))  # type: ignore[arg-type]
    work = job(manifest(tmp_path / "n", photos, OLD[1:], []), tmp_path / "c")
    assert work_done(extract(work)) == (99, 0, 0)
    check_fresh(work, tmp_path / "fresh")


def test_all_outputs_asked_for_must_be_known(photos: Path, tmp_path: Path) -> None:
    extract(job(manifest(tmp_path / "m", photos, OLD, []), tmp_path / "c"))
    work = job(manifest(tmp_path / "n", photos, OLD[1:], []), tmp_path / "c", outputs=BOTH)
    assert work_done(extract(work)) == (99, 0, 0)
    only = job(manifest(tmp_path / "o", photos, OLD[2:], []), tmp_path / "c", outputs=("tokens",))
    assert work_done(extract(only)) == (0, 98, 0)
    check_fresh(only, tmp_path / "fresh")


def test_an_added_output_is_copied_where_it_is_known(photos: Path, tmp_path: Path) -> None:
    small = job(manifest(tmp_path / "m", photos, OLD, []), tmp_path / "c")
    extract(small)
    before = store_files(small.store)
    extract(job(manifest(tmp_path / "n", photos, OLD[10:], []), tmp_path / "c", outputs=BOTH))
    added = dataclasses.replace(small, outputs=("tokens",))
    assert work_done(extract(added)) == (10, 90, 0)
    pooled = {name: data for name, data in before.items() if not name.startswith("status/blocks")}
    assert pooled.items() <= store_files(small.store).items()
    check_fresh(dataclasses.replace(small, outputs=BOTH), tmp_path / "fresh")


def test_failed_rows_are_tried_again_elsewhere(photos: Path, tmp_path: Path) -> None:
    extract(job(manifest(tmp_path / "m", photos, ["001.png", "page.jpg", "gone.png"], []), tmp_path / "c"))
    work = job(manifest(tmp_path / "n", photos, ["page.jpg", "001.png"], []), tmp_path / "c")
    summary = extract(work)
    assert counts(summary)[:1] == (1,)
    assert (summary.copied, summary.ok, summary.failed) == (1, 1, 1)


def test_replaced_pictures_take_what_they_now_are(photos: Path, tmp_path: Path) -> None:
    """Two pictures swap places, in two blocks: one is copied, the row of the other then holds something else."""
    found = manifest_of(tmp_path, photos, list(range(100)))
    work = job(found, tmp_path / "c", outputs=BOTH)
    extract(work)
    root = found.image_root
    (root / "3.png").rename(root / "held")
    (root / "90.png").rename(root / "3.png")
    (root / "held").rename(root / "90.png")
    shutil.copy(root / "5.png", root / "80.png")
    encoded, copied, already = work_done(extract(work))
    assert (encoded + copied, already) == (3, 97)
    assert encoded <= 1  # none, when it was read before the row that held it was replaced
    assert work_done(extract(work)) == (0, 0, 100)
    check_fresh(work, tmp_path / "fresh")


def test_equal_ids_and_paths_of_other_pictures_are_not_equal_content(photos: Path, tmp_path: Path) -> None:
    first = manifest_of(tmp_path / "a", photos, list(range(70)))
    extract(job(first, tmp_path / "c"))
    shutil.copy(photos / "150.png", first.image_root / "70.png")
    other = manifest_of(tmp_path / "b", photos, [*range(100, 170), 3])
    work = job(other, tmp_path / "c")
    assert work_done(extract(work)) == (70, 1, 0)
    check_fresh(work, tmp_path / "fresh")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_kept_value_survives_being_copied_to_the_bit(dtype: str, tmp_path: Path) -> None:
    """All finite float16, and float32 of all exponents: zeros of both signs, subnormals, the largest."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = (
        bits.view(np.float16) if dtype == "float16" else (bits.astype(np.uint32) << 16 | bits).view(np.float32)
    )
    values = values[np.isfinite(values)]
    spec = ArraySpec((len(values),), dtype)
    work = extract_rows.Work(load_encoder("toys.toy:Toy:m", {}), "text", {"x": spec}, tmp_path, 4, 1)
    known = KnownRow({"x": values}, Status.CUT)
    found = extract_rows.encode_rows(work, iter([(b"k" * 16, known)]), 1)
    assert found.rows["x"].astype(dtype).tobytes() == values.tobytes()
    assert (found.status.tolist(), found.copied, found.content_hash.tobytes()) == ([Status.CUT], 1, b"k" * 16)
