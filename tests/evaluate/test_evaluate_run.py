from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from vlpipe.cache_store.errors import NotCachedError
from vlpipe.cache_store.layout import Side, marker_path, store_path
from vlpipe.evaluate import results
from vlpipe.evaluate.bootstrap import Bootstrap
from vlpipe.evaluate.results import LEDGER
from vlpipe.evaluate.run import evaluate
from vlpipe.evaluate.tables import markdown
from vlpipe.foundation.errors import StaleError, UnknownNameError, VlpipeError

FEW = Bootstrap(replicates=50)
Maker = Callable[..., Any]


def full_matrix_recalls(x: np.ndarray, y: np.ndarray, owner: np.ndarray, k: int) -> tuple[float, float]:
    """Recall@k both ways from float64 cosines of the rows as cached (float32); owner -1 is no image."""
    x, y = x.astype(np.float32).astype(float), y.astype(np.float32).astype(float)
    scores = (x / np.linalg.norm(x, axis=1)[:, None]) @ (y / np.linalg.norm(y, axis=1)[:, None]).T
    i2t, t2i = [], []
    for i, row in enumerate(scores):
        if (owner == i).any():
            i2t.append(1 + (row[owner != i] >= row[owner == i].max()).sum())
    for t, i in enumerate(owner):
        if i >= 0:
            t2i.append(1 + (np.delete(scores[:, t], i) >= scores[i, t]).sum())
    return float(np.mean(np.array(i2t) <= k)), float(np.mean(np.array(t2i) <= k))


def test_numbers_equal_the_full_matrix(place: Maker) -> None:
    made = place()
    done = evaluate(made.runs, made.train(), bootstrap=FEW)
    test = np.arange(1, 60, 2)
    texts = np.repeat(np.arange(60), 3) % 2 == 1
    owner = np.repeat(np.arange(len(test)), 3)
    for k in (1, 5, 10):
        i2t, t2i = full_matrix_recalls(made.x[test], made.y[texts], owner, k)
        assert done.entries[f"i2t_recall@{k}"].value == i2t
        assert done.entries[f"t2i_recall@{k}"].value == pytest.approx(t2i, abs=1e-12)
    assert (done.entries["i2t_recall@1"].rows, done.entries["t2i_recall@1"].rows) == (30, 90)


def test_rows_and_ledger(place: Maker) -> None:
    made = place()
    run = made.train()
    done = evaluate(made.runs, run, bootstrap=FEW)
    table = pq.read_table(done.path)
    assert done.path == made.runs / run / "rows-retrieval-test.parquet"
    assert table["query_id"].to_pylist()[:2] == ["i1", "i3"]
    assert table["query_id"].to_pylist()[30:33] == ["t3", "t4", "t5"]
    assert table["image_id"].to_pylist()[30:34] == ["i1", "i1", "i1", "i3"]
    lines = [json.loads(line) for line in (made.runs / LEDGER).read_text().splitlines()]
    line = next(line for line in lines if line["metric"] == "t2i_recall@1")
    assert {"run", "task", "split", "value", "interval", "rows", "version", "commit", "time"} < line.keys()
    assert line["interval"][0] <= line["value"] <= line["interval"][1]
    provenance = line["provenance"]
    assert provenance["manifest"] == made.manifest.digest
    assert provenance["sources"] == {"image": "enc:a#pooled", "text": "enc:a#pooled"}
    assert provenance["kind"] == "identity"


def test_the_same_again_computes_and_appends_nothing(place: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = place()
    run = made.train()
    first = evaluate(made.runs, run, bootstrap=FEW)
    before = (made.runs / LEDGER).read_bytes()
    monkeypatch.setattr("vlpipe.heads.kinds.identity.Identity.score", None)
    again = evaluate(made.runs, run, bootstrap=FEW)
    assert (first.reused, again.reused) == (False, True)
    assert (made.runs / LEDGER).read_bytes() == before
    assert again.entries == first.entries
    assert again.rows.query_ids.tolist() == first.rows.query_ids.tolist()
    assert again.rows.values["rank"].tolist() == first.rows.values["rank"].tolist()


def test_a_lost_ledger_is_made_again_from_the_rows(place: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = place()
    run = made.train()
    first = evaluate(made.runs, run, bootstrap=FEW)
    lines = (made.runs / LEDGER).read_bytes().splitlines(keepends=True)
    (made.runs / LEDGER).write_bytes(b"".join(lines[:3]))  # killed while appending
    monkeypatch.setattr("vlpipe.heads.kinds.identity.Identity.score", None)
    again = evaluate(made.runs, run, bootstrap=FEW)
    assert not again.reused
    assert {n: (e.value, e.interval) for n, e in again.entries.items()} == {
        n: (e.value, e.interval) for n, e in first.entries.items()
    }
    assert len(results.latest(results.read(made.runs / LEDGER))) == len(first.entries)


def test_other_options_have_rows_of_their_own(place: Maker) -> None:
    made = place()
    run = made.train()
    evaluate(made.runs, run, bootstrap=FEW)
    other = evaluate(made.runs, run, options={"ks": [2]}, bootstrap=FEW)
    assert "i2t_recall@2" in other.entries
    assert other.path.name.startswith("rows-retrieval-test-")
    assert evaluate(made.runs, run, bootstrap=FEW).reused
    assert evaluate(made.runs, run, options={"ks": [2]}, bootstrap=FEW).reused


def elsewhere(place: Maker) -> tuple[str, Any]:
    """A run, and another manifest's place to evaluate it on: its own rows may not change under a run."""
    return place().train(), place(images=40, name="other")


def test_rows_that_failed_are_left_out_told_and_make_another_evaluation(place: Maker) -> None:
    run, made = elsewhere(place)
    there = made.manifest.folder
    evaluate(made.runs, run, manifest=there, bootstrap=FEW)
    made.again(made.x, made.y, failed=[1])
    done = evaluate(made.runs, run, manifest=there, bootstrap=FEW)
    assert not done.reused
    assert (done.entries["i2t_recall@1"].rows, done.entries["t2i_recall@1"].rows) == (19, 57)
    assert {"i1", "t3"}.isdisjoint(done.rows.query_ids.tolist())
    assert done.entries["i2t_recall@1"].provenance.left_out == {"images": 1, "texts": 3}
    again = evaluate(made.runs, run, manifest=there, bootstrap=FEW)
    assert again.reused
    assert again.notes == done.notes
    assert "1 of 20 images and 3 of 60 texts" in done.notes[0]
    table = markdown(results.by_run(results.latest(results.read(made.runs / LEDGER))))
    assert "1 images" in table


@pytest.mark.parametrize("side", ["image", "text"])
def test_rows_that_were_never_encoded_are_no_small_gallery(place: Maker, side: Side) -> None:
    run, made = elsewhere(place)
    store = store_path(made.root / "cache", made.manifest.digest, "enc:a", side)
    shutil.rmtree(store)
    rows = made.x if side == "image" else made.y
    made.store(side, rows, block_rows=16)
    marker_path(store, 1).unlink()  # what an interrupted extraction leaves
    with pytest.raises(NotCachedError, match=rf"never encoded.* 8 of (20|60) {side}s") as told:
        evaluate(made.runs, run, manifest=made.manifest.folder, bootstrap=FEW)
    assert "run the same `vlpipe extract` command again" in str(told.value)


def test_other_pictures_of_the_same_rows_are_another_evaluation(place: Maker) -> None:
    run, made = elsewhere(place)
    there = made.manifest.folder
    old = evaluate(made.runs, run, manifest=there, bootstrap=FEW)
    made.again(made.x[::-1].copy(), made.y, mark=1000)
    new = evaluate(made.runs, run, manifest=there, bootstrap=FEW)
    assert not new.reused
    assert new.entries["i2t_recall@10"].value != old.entries["i2t_recall@10"].value
    seen = [done.entries["i2t_recall@1"].provenance.content for done in (old, new)]
    assert seen[0]["text"] == seen[1]["text"]
    assert seen[0]["image"] != seen[1]["image"]


def test_damaged_rows_of_a_run_are_computed_again(place: Maker) -> None:
    made = place()
    run = made.train()
    first = evaluate(made.runs, run, bootstrap=FEW)
    first.path.write_bytes(first.path.read_bytes()[:-40])
    again = evaluate(made.runs, run, bootstrap=FEW)
    assert {m: e.value for m, e in again.entries.items()} == {m: e.value for m, e in first.entries.items()}
    assert evaluate(made.runs, run, bootstrap=FEW).reused


def test_lines_of_one_run_on_two_manifests_are_told_apart(place: Maker) -> None:
    run, made = elsewhere(place)
    evaluate(made.runs, run, bootstrap=FEW)
    evaluate(made.runs, run, manifest=made.manifest.folder, bootstrap=FEW)
    table = markdown(results.by_run(results.latest(results.read(made.runs / LEDGER))))
    assert "| run | task | split | manifest |" in table
    assert f"| {made.manifest.digest[:12]} |" in table


def test_images_without_texts_and_texts_without_images_are_candidates(place: Maker) -> None:
    made = place(bare=10, alone=["test", None, "testing", "train", "val"])
    done = evaluate(made.runs, made.train(), bootstrap=FEW)
    owner = np.concatenate([np.repeat(np.arange(50), 3), [-1, -1, -1]])  # the two texts of other splits are out
    taken = np.flatnonzero((owner % 2 == 1) | (owner < 0))  # -1 % 2 is 1 as well
    local = np.where(owner[taken] < 0, -1, owner[taken] // 2)
    for k in (1, 5, 10):
        i2t, t2i = full_matrix_recalls(made.x[1::2], made.y[taken], local, k)
        assert done.entries[f"i2t_recall@{k}"].value == pytest.approx(i2t, abs=1e-12)
        assert done.entries[f"t2i_recall@{k}"].value == pytest.approx(t2i, abs=1e-12)
    assert (done.entries["i2t_recall@1"].rows, done.entries["t2i_recall@1"].rows) == (25, 75)
    assert done.entries["worst_caption_recall@1"].rows == 25
    assert done.notes == ["5 images without a text and 3 texts without an image are candidates only"]
    assert {"i51", "t150"}.isdisjoint(done.rows.query_ids.tolist())
    assert len(np.unique(done.rows.image)) == 25  # what the bootstrap draws from


def test_zero_vectors_are_told_also_when_nothing_is_computed(place: Maker) -> None:
    made = place()
    made.x[[0, 2, 5]] = 0  # two of them train
    made.y[[3, 9, 10]] = 0
    made.again(made.x, made.y)
    run = made.train()
    first, again = (evaluate(made.runs, run, bootstrap=FEW) for _ in range(2))
    told = "zero vectors: 1 of role 'image', 3 of role 'text'"
    assert first.notes[0] == told
    assert again.reused
    assert again.notes == first.notes


def test_features_of_another_model_are_refused(place: Maker) -> None:
    made = place()
    run = made.train()
    shutil.rmtree(made.root / "cache")
    made.store("image", made.x)
    made.store("text", made.y, weights="w1")
    with pytest.raises(StaleError, match="weights"):
        evaluate(made.runs, run, bootstrap=FEW)
    assert not (made.runs / LEDGER).exists()


def test_another_manifest(place: Maker) -> None:
    made = place()
    run = made.train()
    own = evaluate(made.runs, run, bootstrap=FEW)
    other = place(images=40, noise=0.0, name="other")
    done = evaluate(made.runs, run, manifest=other.manifest.folder, bootstrap=FEW)
    assert done.entries["i2t_recall@1"].value == 1.0 > own.entries["i2t_recall@1"].value
    assert done.path != own.path
    assert done.entries["i2t_recall@1"].provenance.manifest == other.manifest.digest
    assert len(results.by_run(results.latest(results.read(made.runs / LEDGER)))) == 2


def test_what_cannot_be_evaluated(place: Maker) -> None:
    made = place()
    run = made.train()
    with pytest.raises(UnknownNameError, match="retrieval"):
        evaluate(made.runs, run, "retrieval_")
    with pytest.raises(UnknownNameError, match=f"did you mean '{run}'"):
        evaluate(made.runs, run[:-1])
    with pytest.raises(UnknownNameError, match="'ks'"):
        evaluate(made.runs, run, options={"k": [1]})
    with pytest.raises(UnknownNameError, match="'tset'; did you mean 'test'"):
        evaluate(made.runs, run, split="tset")
    with pytest.raises(VlpipeError, match="Recall@31 of a gallery of 30 images"):
        evaluate(made.runs, run, options={"ks": [31]})
    assert not list(Path(made.runs / run).glob("rows-*"))


def test_all_images(place: Maker) -> None:
    made = place()
    assert evaluate(made.runs, made.train(), split="all", bootstrap=FEW).entries["i2t_recall@1"].rows == 60


def test_longer_rows_change_nothing(place: Maker) -> None:
    made = place()
    plain = evaluate(made.runs, made.train(), bootstrap=FEW)
    made.again(made.x * np.where(np.arange(60) % 4 > 1, 10.0, 1.0)[:, None], made.y)
    scaled = evaluate(made.runs, plain.run, bootstrap=Bootstrap(51))
    assert not scaled.reused
    assert {n: e.value for n, e in scaled.entries.items()} == {n: e.value for n, e in plain.entries.items()}
