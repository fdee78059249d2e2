from __future__ import annotations

import dataclasses
import fcntl
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from toys.mini import BAD, captions, counts, job, manifest, store_files

from vlpipe.cache_store.errors import StaleCacheError, ValueRangeError
from vlpipe.cache_store.layout import ArraySpec, Status, lock_path
from vlpipe.cache_store.reader import open_features
from vlpipe.cache_store.writer import StoreWriter
from vlpipe.extract.load import load_encoder
from vlpipe.extract.run import InterruptedRunError, Summary, extract
from vlpipe.foundation.errors import TooManyFailuresError, VlpipeError
from vlpipe.manifests.manifest import Manifest


def test_rows_are_right_under_the_right_ids(good: Manifest, photos: Path, tmp_path: Path) -> None:
    work = job(good, tmp_path, outputs=("pooled", "tokens"), dtype="float32")
    assert counts(extract(work)) == (200, 0, 200, 0, 0)
    found = open_features(work.store, "pooled")
    assert list(found.ids) == [f"i:{n:03d}.png" for n in range(200)]
    corners = open_features(work.store, "tokens").rows(list(found.ids))
    for n, row in enumerate(found.rows(list(found.ids))):
        small = np.asarray(Image.open(photos / f"{n:03d}.png").resize((2, 2), 0), np.float32)
        np.testing.assert_allclose(row, small.mean((0, 1)), rtol=1e-6)
        np.testing.assert_array_equal(corners[n], small.reshape(4, 3))


def test_texts_sorted_by_length_come_back_in_manifest_order(good: Manifest, tmp_path: Path) -> None:
    work = job(good, tmp_path, side="text", batch_size=7)
    summary = extract(work)
    texts = captions(200)
    cut = [len(text) > 20 for text in texts]
    assert counts(summary) == (200, 0, 200 - sum(cut), sum(cut), 0)
    found = open_features(work.store, "pooled")
    assert np.asarray(found.status).tolist() == [Status.CUT if c else Status.OK for c in cut]
    expected = [[text[:20].count(c) for c in "abc"] for text in texts]
    np.testing.assert_array_equal(found.rows(list(found.ids)), np.array(expected, np.float16))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_bad_pictures_are_their_own_rows_failure(workers: int, photos: Path, tmp_path: Path) -> None:
    paths = [
        "000.png",
        "empty.jpg",
        "001.png",
        "page.jpg",
        "cut.png",
        "002.png",
        "folder.png",
        "gone.png",
        "003.png",
    ]
    work = job(manifest(tmp_path / "m", photos, paths, []), tmp_path / "cache", workers=workers)
    summary = extract(work)
    assert counts(summary) == (9, 0, 4, 0, 5)
    found = open_features(work.store, "pooled")
    assert [path for path, usable in zip(paths, found.usable, strict=True) if not usable] == BAD[:4] + BAD[4:]
    listed = [json.loads(line) for line in Path(str(summary.failures)).read_text().splitlines()]
    assert [line["path"] for line in listed] == BAD
    assert [line["id"] for line in listed] == [f"i:{path}" for path in BAD]
    reasons = ["0 bytes", "not a picture", "broken", "directory", "does not exist"]
    assert all(word in line["reason"] for word, line in zip(reasons, listed, strict=True))
    alone = job(manifest(tmp_path / "n", photos, ["002.png"], []), tmp_path / "cache")
    extract(alone)
    np.testing.assert_array_equal(
        found.rows(["i:002.png"]), open_features(alone.store, "pooled").rows(["i:002.png"])
    )
    again = extract(work)
    assert counts(again) == (0, 9, 4, 0, 5)
    assert len(Path(str(again.failures)).read_text().splitlines()) == 5


def test_the_share_of_failures_decides() -> None:
    base = Summary("e", "image", "s", ("o",), 100, 100, 0, 0, 99, 0, 1, 0, 1.0, "f")
    base.check(0.01)
    with pytest.raises(TooManyFailuresError, match="1 of 100 image rows failed"):
        base.check(0.009)
    with pytest.raises(TooManyFailuresError):
        dataclasses.replace(base, ok=0, failed=100).check(1.0)
    dataclasses.replace(base, ok=100, failed=0).check(0.0)


def test_mended_rows_are_encoded_again_on_request(photos: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(photos, root)
    paths = [f"{n:03d}.png" for n in range(70)] + ["gone.png", "empty.jpg"]
    found = manifest(tmp_path / "m", root, paths, [])
    work = job(found, tmp_path / "cache", outputs=("pooled", "tokens"))
    assert counts(extract(work)) == (72, 0, 70, 0, 2)
    shutil.copy(root / "199.png", root / "gone.png")
    assert counts(extract(job(found, tmp_path / "cache"))) == (0, 72, 70, 0, 2)
    retry = job(found, tmp_path / "cache", retry_failed=True)
    summary = extract(retry)
    assert counts(summary) == (2, 70, 71, 0, 1)
    assert retry.encoder.batches == [1]  # type: ignore[attr-defined]
    assert [json.loads(line)["id"] for line in Path(str(summary.failures)).read_text().splitlines()] == [
        "i:empty.jpg"
    ]
    shutil.copy(root / "198.png", root / "empty.jpg")
    assert extract(job(found, tmp_path / "cache", retry_failed=True)).failures is None
    fresh = job(found, tmp_path / "fresh", outputs=("pooled", "tokens"))
    extract(fresh)
    for output in ("pooled", "tokens"):
        rows = [open_features(w.store, output).rows([f"i:{p}" for p in paths]) for w in (work, fresh)]
        np.testing.assert_array_equal(*rows)


def test_interrupted_then_resumed_equals_uninterrupted_and_then_nothing_is_left(
    good: Manifest, tmp_path: Path
) -> None:
    whole = job(good, tmp_path / "whole")
    extract(whole)
    stopped = job(good, tmp_path / "parts", settings={"interrupt_after": 9})  # 4 batches a block
    with pytest.raises(InterruptedRunError, match="128 of 200 image rows are kept") as caught:
        extract(stopped)
    assert caught.value.exit_code == 130
    assert counts(extract(job(good, tmp_path / "parts"))) == (72, 128, 200, 0, 0)
    assert counts(extract(job(good, tmp_path / "parts"))) == (0, 200, 200, 0, 0)
    assert store_files(stopped.store) == store_files(whole.store)


def test_an_added_output_leaves_the_other_as_it_is(good: Manifest, tmp_path: Path) -> None:
    first = job(good, tmp_path)
    extract(first)
    before = {n: d for n, d in store_files(first.store).items() if n.startswith("pooled")}
    assert counts(extract(job(good, tmp_path, outputs=("tokens",)))) == (200, 0, 200, 0, 0)
    after = store_files(first.store)
    assert before == {n: d for n, d in after.items() if n.startswith("pooled")}
    assert open_features(first.store, "tokens").shape == (4, 3)
    assert counts(extract(job(good, tmp_path, outputs=("pooled", "tokens"))))[0] == 0


def test_equal_content_is_encoded_once_in_a_block(photos: Path, tmp_path: Path) -> None:
    paths = ["005.png", "006.png", "same-as-005.png"]
    work = job(manifest(tmp_path / "m", photos, paths, ["a b", "c", "a b"]), tmp_path / "cache")
    extract(work)
    assert sum(work.encoder.batches) == 2  # type: ignore[attr-defined]
    rows = open_features(work.store, "pooled").rows([f"i:{path}" for path in paths])
    np.testing.assert_array_equal(rows[0], rows[2])
    assert not np.array_equal(rows[0], rows[1])
    texts = dataclasses.replace(work, side="text", encoder=load_encoder("toys.toy:Toy:m", {}))
    extract(texts)
    assert sum(texts.encoder.batches) == 2  # type: ignore[attr-defined]


def test_zero_vectors_are_finite_and_counted(photos: Path, tmp_path: Path) -> None:
    work = job(
        manifest(tmp_path / "m", photos, ["001.png"], ["xyz", "abc", "zzz", "bad"]), tmp_path / "c", side="text"
    )
    summary = extract(work)
    assert (summary.zero_norm, summary.ok, summary.failed) == (2, 3, 1)


@pytest.mark.parametrize(("scale", "says"), [(1e9, "--dtype float32"), (1e39, "finite")])
def test_values_that_do_not_fit_are_never_kept(scale: float, says: str, good: Manifest, tmp_path: Path) -> None:
    work = job(good, tmp_path, settings={"scale": scale})
    with pytest.raises(ValueRangeError, match=rf"row 'i:000.png'.*{says}"):
        extract(work)
    assert not open_features(work.store, "pooled").usable.any()
    if scale == 1e9:
        wide = dataclasses.replace(work, dtype="float32", cache=tmp_path / "wide")
        assert extract(wide).ok == 200


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": "other"}, "weights"),
        ({"settings": {"scale": 2.0}}, "precision"),
        ({"dtype": "float32"}, "dtype"),
    ],
)
def test_a_store_of_something_else_is_refused_with_the_field(
    change: dict[str, Any], field: str, good: Manifest, tmp_path: Path
) -> None:
    extract(job(good, tmp_path))
    with pytest.raises(StaleCacheError, match=field) as caught:
        extract(job(good, tmp_path, **change))
    assert caught.value.exit_code == 4


def test_changed_pictures_that_are_trusted_are_refused_for_a_new_output(photos: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(photos, root)
    found = manifest(tmp_path / "m", root, ["001.png", "002.png"], [])
    extract(job(found, tmp_path / "cache"))
    shutil.copy(root / "003.png", root / "002.png")
    with pytest.raises(StaleCacheError, match=r"i:002\.png"):
        extract(job(found, tmp_path / "cache", outputs=("tokens",), check_content=False))


def test_what_is_there_is_looked_up_once(good: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extract(job(good, tmp_path))
    calls = []
    real = StoreWriter.missing
    monkeypatch.setattr(StoreWriter, "missing", lambda writer: calls.append(1) or real(writer))
    assert counts(extract(job(good, tmp_path)))[:2] == (0, 200)
    assert len(calls) == 1


def test_blocks_are_small_enough_for_an_output_that_may_come_later(
    good: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = job(good, tmp_path)
    known = work.encoder.outputs("image")
    wide = {**known, "states": ArraySpec((4096, 1024))}  # 8 MiB a row
    monkeypatch.setattr(work.encoder, "outputs", lambda side: wide)
    assert work.open().writer.block_rows == 32
    assert dataclasses.replace(work, dtype="float32", name="f32").open().writer.block_rows == 16


def test_sides_without_rows_and_missing_pictures_folder(photos: Path, tmp_path: Path) -> None:
    found = manifest(tmp_path / "m", photos, ["001.png"], [])
    with pytest.raises(VlpipeError, match="has no texts"):
        extract(job(found, tmp_path, side="text"))
    lost = manifest(tmp_path / "n", tmp_path / "lost", ["001.png"], [])
    with pytest.raises(VlpipeError, match="does not exist"):
        extract(job(lost, tmp_path))


def test_another_process_at_work_is_an_error_in_one_line(good: Manifest, tmp_path: Path) -> None:
    stopped = job(good, tmp_path, settings={"interrupt_after": 0})
    with pytest.raises(InterruptedRunError):
        extract(stopped)
    with lock_path(stopped.store, 1).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(VlpipeError, match=r"64 rows of .* another process"):
            extract(job(good, tmp_path))
    assert counts(extract(job(good, tmp_path)))[:2] == (64, 136)
