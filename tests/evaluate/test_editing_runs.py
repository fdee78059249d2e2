from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from vlpipe.evaluate import commands
from vlpipe.evaluate.frozen import frozen_run
from vlpipe.evaluate.run import evaluate
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.heads.runs import Run, open_joined
from vlpipe.manifests.writer import write_manifest

Place = Any
FAST = {"epochs": 2, "batch_size": 16, "lr": 0.01}


@pytest.fixture
def runs(place: Callable[..., Place]) -> tuple[Place, str, str]:
    """A smartclip run, and a tevi run on an autoencoder, of the same features."""
    made = place()
    sae = made.train("sae", latents=12, k=4, **FAST)
    tevi = made.train("tevi", sources=(f"image=enc:a#pooled::{sae}",), **FAST)
    return made, made.train("smartclip", **FAST), tevi


def test_cosines_of_pairs_before_and_after_editing(runs: tuple[Place, str, str]) -> None:
    made, *ids = runs
    for run_id in ids:
        done = evaluate(made.runs, run_id, "pair_cosines")
        head, joined = Run.open(made.runs, run_id).head().double(), open_joined(Run.open(made.runs, run_id))
        images = joined.images("test")
        texts = joined.texts_of(images, ["caption"])
        owner = joined.text_image[texts]
        left = head.images(joined.image_batch(owner))
        right = head.texts(joined.text_batch(texts, "text"))
        expected = head.score_pairs(left, right).mean()
        assert done.entries["cosine_edited"].value == pytest.approx(float(expected.detach()), abs=1e-5)
        raw = torch.nn.functional.normalize(joined.image_batch(owner).x["image"], dim=1)
        plain = (raw * torch.nn.functional.normalize(joined.text_batch(texts, "text").x["text"], dim=1)).sum(dim=1)
        assert done.entries["cosine_original"].value == pytest.approx(float(plain.mean()), abs=1e-5)
        (figure,) = done.made_by.draw([done], made.root / "figures")  # type: ignore[attr-defined]
        assert figure.stat().st_size > 1000


def test_two_stages_with_all_candidates_are_exact(runs: tuple[Place, str, str]) -> None:
    made, _, tevi = runs
    retrieval = {name: entry.value for name, entry in evaluate(made.runs, tevi).entries.items()}
    images = round(evaluate(made.runs, tevi).entries["i2t_recall@1"].rows)
    done = evaluate(made.runs, tevi, "two_stage", options={"candidates": images})
    for k in (1, 5, 10):
        assert done.entries[f"t2i_recall@{k}"].value == retrieval[f"t2i_recall@{k}"]
        assert done.entries[f"i2t_recall@{k}_exact"].value == retrieval[f"i2t_recall@{k}"]
    few = evaluate(made.runs, tevi, "two_stage", options={"candidates": 1, "ks": [1]})
    assert few.entries["t2i_recall@1"].value == few.entries["t2i_recall_reached"].value
    assert np.isclose(few.entries["t2i_recall_reached"].value, few.entries["t2i_recall@1_coarse"].value)


def test_tasks_say_what_a_manifest_lacks(runs: tuple[Place, str, str]) -> None:
    made, smartclip, tevi = runs
    for task in ("attributes", "specificity"):
        with pytest.raises(VlpipeError, match="prompts"):
            evaluate(made.runs, tevi, task)
    with pytest.raises(VlpipeError, match="perturbed:danger"):
        evaluate(made.runs, smartclip, "rococo")


def prompted(place: Callable[..., Place]) -> Place:
    """A manifest whose last two texts, which belong to no image, are prompts of one attribute."""
    made = place(images=24, alone=(None, None))
    images, texts = (made.manifest.table(side).to_pylist(maps_as_pydicts="strict") for side in ("image", "text"))
    for n, row in enumerate(texts[-2:]):
        row |= {"role": "prompt", "attributes": {"attribute": "hue", "class": f"h{2 * n + 1}"}}
    named = {"name": "prompted", "source": "made", "licence": "none", "image_root": made.root}
    made.manifest = write_manifest(made.root / "prompted", images=images, texts=texts, **named)
    made.again(made.x, made.y)
    return made


SKIPPED = {
    "two_stage": ("frozen", "identity", "sae"),
    "latents": ("frozen", "identity", "smartclip"),
    "specificity": ("frozen", "identity", "sae", "smartclip"),
    "attributes": ("frozen", "sae"),
    "pair_cosines": ("frozen", "sae"),
}


@pytest.mark.parametrize("task", SKIPPED)
def test_all_leaves_out_the_runs_that_a_task_cannot_score(place: Callable[..., Place], task: str) -> None:
    made = prompted(place)
    sae = made.train("sae", latents=12, k=4, **FAST)
    ids = {"sae": sae, "tevi": made.train("tevi", sources=(f"image=enc:a#pooled::{sae}",), **FAST)}
    ids |= {"smartclip": made.train("smartclip", **FAST), "identity": made.train("identity")}
    ids["frozen"] = frozen_run(made.manifest.folder, made.root / "cache", made.runs, (), "enc:a")
    given = ["--runs", str(made.runs), "--task", task]
    small = ["--set", "ks=[1]", "--set", "candidates=3"] if task == "two_stage" else []
    done = CliRunner().invoke(commands.evaluate, ["--all", "--json", *given, *small])
    assert done.exit_code == 0, done.stderr
    shown = json.loads(done.stdout)
    assert sorted(shown["skipped"]) == sorted(ids[kind] for kind in SKIPPED[task])
    assert {e["run"] for e in shown["evaluations"]} == set(ids.values()) - set(shown["skipped"])
    assert shown["failed"] == []
    for kind in SKIPPED[task]:
        assert done.stderr.count(f"skipped: run '{ids[kind]}'") == 1
        with pytest.raises(UsageError, match=ids[kind]):
            evaluate(made.runs, ids[kind], task, options={"ks": [1], "candidates": 3} if small else {})
