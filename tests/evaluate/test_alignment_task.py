"""`vlpipe eval --task alignment` on cached features: which pairs, which conditions, what is kept and told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner

from vlpipe.cache_store.layout import store_path
from vlpipe.evaluate import commands
from vlpipe.evaluate.cka import cka
from vlpipe.evaluate.contracts import Inputs, NothingToScoreError
from vlpipe.evaluate.frozen import frozen_run
from vlpipe.evaluate.kernels import UndefinedError
from vlpipe.evaluate.metrics.alignment import STATISTICS
from vlpipe.evaluate.pairs import pairs_of
from vlpipe.evaluate.results import LEDGER
from vlpipe.evaluate.run import evaluate
from vlpipe.foundation.errors import StaleError, UsageError, VlpipeError
from vlpipe.manifests.writer import write_manifest

Maker = Callable[..., Any]
FAST = {"components": 3, "neighbours": 5, "permutations": 3, "dims": 4}
SUBSETS = ("swap", "replace")


def texts_of(images: int, each: int, negatives: int) -> list[dict[str, Any]]:
    """Captions, then hard negatives of the first ones; every other caption is of another subset."""
    made = [
        {"text_id": f"t{n}", "text": f"text {n}", "role": "caption", "image_id": f"i{n // each}"}
        for n in range(images * each)
    ]
    made += [
        {"text_id": f"t{n}#negative", "text": f"not {n}", "role": "hard_negative", "source_text_id": f"t{n}"}
        for n in range(negatives)
    ]
    number = [int(row["text_id"][1:].partition("#")[0]) for row in made]
    return [row | {"attributes": {"subset": SUBSETS[n % 2]}} for row, n in zip(made, number, strict=True)]


@pytest.fixture
def aligned(place: Maker, tmp_path: Path) -> Maker:
    """`aligned(images, each, negatives)`: texts of width 6 are noisy maps of images of width 8; negatives stray a
    little from their caption.
    """

    def make(
        images: int = 60,
        each: int = 2,
        negatives: int | None = None,
        name: str = "pairs",
        texts: Sequence[dict[str, Any]] | None = None,
    ) -> Any:
        draw = np.random.default_rng(0)
        negatives = images * each if negatives is None else negatives
        x = draw.normal(size=(images, 8))
        rows = texts_of(images, each, negatives) if texts is None else texts
        captions = x[np.arange(images * each) // each] @ draw.normal(size=(8, 6))
        y = captions + 0.5 * draw.normal(size=captions.shape)
        y = np.concatenate([y, y[:negatives] + 0.3 * draw.normal(size=(negatives, 6))])
        if texts is not None:
            y = draw.normal(size=(len(texts), 6))
        pictures = [{"image_id": f"i{n}", "path": f"{n}.jpg", "split": "test"} for n in range(images)]
        manifest = write_manifest(
            tmp_path / name, name=name, source="", licence="", image_root=tmp_path, images=pictures, texts=rows
        )
        made = type(place(name=f"unused-{name}"))(tmp_path, manifest, x, y)
        made.store("image", x)
        made.store("text", y)
        return made

    return make


def frozen(made: Any) -> str:
    sources = ("image=enc:a#pooled", "text=enc:a#pooled")
    return frozen_run(made.manifest.folder, made.root / "cache", made.runs, sources)


def unrelated(aligned: Maker, count: int = 60) -> Any:
    texts = [{"text_id": f"u{n}", "text": f"book {n}", "role": "caption", "split": "test"} for n in range(count)]
    return aligned(count, name="unrelated", texts=texts)


def test_all_conditions_before_any_training(aligned: Maker) -> None:
    made, other = aligned(), unrelated(aligned)
    done = evaluate(made.runs, frozen(made), "alignment", beside=other.manifest.folder, options=FAST)
    found = {name: entry.value for name, entry in done.entries.items()}
    names = [f"{c}_{s}" for c in ("match", "hard", "easy_image", "easy_text") for s in STATISTICS]
    assert sorted(found) == sorted([*names, *(f"{name}_shuffled" for name in names)])
    for name in ("cka_debiased", "cknna_paper", "cca_linear", "svcca_fixed10"):
        assert found[f"match_{name}"] > found[f"match_{name}_shuffled"]
    assert found["match_cka_debiased"] > 0.3 > abs(found["match_cka_debiased_shuffled"])
    assert found["hard_cka_debiased"] > 0.3  # what the paper found: near misses look like matches
    assert abs(found["easy_image_cka_debiased"]) < 0.15
    assert abs(found["easy_text_cka_debiased"]) < 0.15
    assert {entry.rows for entry in done.entries.values()} == {60}
    assert {entry.interval is None for entry in done.entries.values()} == {True}
    assert done.notes == []


def test_numbers_are_those_of_the_cached_rows(aligned: Maker) -> None:
    made = aligned(each=1, negatives=0)
    done = evaluate(made.runs, frozen(made), "alignment", options={**FAST, "dims": 0})
    x, y = (torch.from_numpy(side.astype(np.float32)) for side in (made.x, made.y))
    assert done.entries["match_cka_biased"].value == pytest.approx(cka(x, y), abs=1e-12)
    assert "no caption has a hard negative" in done.notes[0]
    assert "no unrelated rows" in done.notes[1]


def test_again_nothing_is_computed_and_rows_hold_every_shuffle(aligned: Maker) -> None:
    made = aligned()
    first, again = (evaluate(made.runs, frozen(made), "alignment", options=FAST) for _ in range(2))
    assert (first.reused, again.reused) == (False, True)
    assert again.notes == first.notes
    assert {n: e.value for n, e in again.entries.items()} == {n: e.value for n, e in first.entries.items()}
    table = pq.read_table(first.path).to_pylist()
    assert {row["image_id"] for row in table} == {None}
    own = [row for row in table if row["query_id"] == "hard_svcca"]
    assert [row["shuffle"] for row in own] == [-1, 0, 1, 2]
    mean = np.mean([row["value"] for row in own[1:]])
    assert first.entries["hard_svcca_shuffled"].value == pytest.approx(mean)


def test_other_unrelated_rows_are_another_evaluation(aligned: Maker) -> None:
    made = aligned()
    run = frozen(made)
    plain = evaluate(made.runs, run, "alignment", options=FAST)
    other = unrelated(aligned)
    easy = evaluate(made.runs, run, "alignment", beside=other.manifest.folder, options=FAST)
    assert easy.path != plain.path
    assert evaluate(made.runs, run, "alignment", options=FAST).reused
    options = easy.entries["match_svcca"].provenance.options
    assert options["beside"] == other.manifest.digest[:12]
    stored_again(other, mark=1000)
    again = evaluate(made.runs, run, "alignment", beside=other.manifest.folder, options=FAST)
    assert not again.reused
    stored_again(other, weights="w1")
    with pytest.raises(StaleError, match="weights"):
        evaluate(made.runs, run, "alignment", beside=other.manifest.folder, options=FAST)


def stored_again(made: Any, **images: Any) -> None:
    """Another store of one manifest's rows in a cache that others share."""
    shutil.rmtree(store_path(made.root / "cache", made.manifest.digest, "enc:a", "image"))
    made.store("image", made.x, **images)


def test_fewer_unrelated_rows_take_fewer_pairs(aligned: Maker) -> None:
    made, other = aligned(), unrelated(aligned, count=30)
    done = evaluate(made.runs, frozen(made), "alignment", beside=other.manifest.folder, options=FAST)
    assert {done.entries[f"{c}_cka_biased"].rows for c in ("easy_image", "easy_text")} == {30}
    assert done.entries["match_cka_biased"].rows == 60


def test_what_is_not_defined_is_told_and_left_out(aligned: Maker) -> None:
    made = aligned(images=20)
    done = evaluate(made.runs, frozen(made), "alignment", options={**FAST, "components": 50, "neighbours": 20})
    assert not [name for name in done.entries if "cknna" in name]
    assert "match_cca_rbf" not in done.entries
    assert "not defined (column 'why' of the rows says why): match_cca_rbf" in done.notes[-1]
    why = {row["query_id"]: row["why"] for row in pq.read_table(done.path).to_pylist()}
    assert "19 and 19 components over 20 pairs are 1 for any features" in why["match_cca_rbf"]
    assert "20 neighbours among 20 pairs" in why["hard_cknna_paper"]


def test_constant_features_have_no_number(aligned: Maker) -> None:
    made = aligned()
    made.x[:] = 0.1
    made.again(made.x, made.y)
    run = frozen(made)
    with pytest.raises(UndefinedError, match="all 60 rows are equal"):
        evaluate(made.runs, run, "alignment", options=FAST)
    assert not (made.runs / LEDGER).exists()


def inputs(texts: Sequence[dict[str, Any]], images: int) -> Inputs:
    known = {row["text_id"]: row for row in texts}
    owner = [row.get("image_id") or known[row["source_text_id"]]["image_id"] for row in texts]
    return Inputs(
        image_ids=[f"i{n}" for n in range(images)],
        text_ids=[row["text_id"] for row in texts],
        text_image=np.array([int(name[1:]) for name in owner]),
        scores=lambda images, texts: torch.zeros(0),
        columns={name: [row.get(name) for row in texts] for name in ("role", "source_text_id", "attributes")},
    )


def test_a_negative_belongs_to_the_drawn_caption() -> None:
    texts = texts_of(10, 3, 25)  # the captions of the last image and two of the one before have none
    found = pairs_of(inputs(texts, 10), "image", {}, seed=0)
    assert found.images.tolist() == list(range(9))
    assert found.negatives is not None
    assert [texts[n]["source_text_id"] for n in found.negatives] == [texts[t]["text_id"] for t in found.texts]
    assert [texts[t]["image_id"] for t in found.texts] == [f"i{i}" for i in found.images]
    other = pairs_of(inputs(texts, 10), "image", {}, seed=1)
    assert other.texts.tolist() != found.texts.tolist()
    every = pairs_of(inputs(texts, 10), "text", {}, seed=0)
    assert every.texts.tolist() == list(range(25))
    assert every.images.tolist() == [n // 3 for n in range(25)]


def test_texts_of_one_subset() -> None:
    texts = texts_of(10, 2, 20)
    found = pairs_of(inputs(texts, 10), "text", {"subset": ["swap"]}, seed=0)
    assert found.texts.tolist() == list(range(0, 20, 2))
    assert found.negatives is not None
    assert {texts[n]["attributes"]["subset"] for n in found.negatives} == {"swap"}


def test_without_negatives_every_caption_takes_part() -> None:
    found = pairs_of(inputs(texts_of(4, 2, 0), 4), "text", {}, seed=0)
    assert (found.texts.tolist(), found.negatives) == (list(range(8)), None)


def call(*arguments: object) -> Any:
    done = CliRunner().invoke(commands.evaluate, [str(a) for a in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_on_the_command_line(aligned: Maker) -> None:
    made, other = aligned(), unrelated(aligned)
    place = ["--manifest", made.manifest.folder, "--cache", made.root / "cache", "--runs", made.runs]
    sources = ["--source", "image=enc:a#pooled", "--source", "text=enc:a"]
    sets = [part for name, value in FAST.items() for part in ("--set", f"{name}={value}")]
    more = [*place, *sources, *sets, "--task", "alignment", "--beside", other.manifest.folder]
    told = json.loads(call(*more, "--json").stdout)["evaluations"][0]
    assert told["run"].startswith("frozen-")
    assert told["metrics"]["match_cka_debiased"]["interval"] is None
    shown = call(*more)
    assert "nothing computed again" in shown.stderr
    line = next(line for line in shown.stdout.splitlines() if "CKA, debiased: match" in line)
    assert f"{told['metrics']['match_cka_debiased']['value']:.3f}" in line
    where = ["--set", 'where={subset=["swap"]}', "--set", 'per="text"']
    swaps = json.loads(call(*more, *where, "--json").stdout)["evaluations"][0]
    assert swaps["metrics"]["match_cka_biased"]["rows"] == 60
    with pytest.raises(VlpipeError, match=r"no text has the attribute subset = 'swapped'; known: replace, swap"):
        call(*more, "--set", 'where={subset=["swapped"]}')
    with pytest.raises(UsageError, match="expected --manifest DIR"):
        call(*sources, "--task", "alignment")
    with pytest.raises(NothingToScoreError, match="scores nothing; --task alignment reads it"):
        call("--run", told["run"], "--runs", made.runs)
    with pytest.raises(VlpipeError, match="no finished run"):
        call("--all", "--runs", made.runs)


def test_unrelated_rows_are_no_matter_of_retrieval(place: Maker) -> None:
    made = place()
    with pytest.raises(UsageError, match="--beside names unrelated rows"):
        call("--run", made.train(), "--runs", made.runs, "--beside", made.manifest.folder)
