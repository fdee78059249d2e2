"""A recipe whose text encoder learns: trained, its texts encoded anew, scored on another manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vlpipe import pipeline
from vlpipe.extract.contracts import TextItem
from vlpipe.extract.load import load_encoder
from vlpipe.foundation.files import file_digest
from vlpipe.heads.contracts import Batch
from vlpipe.heads.runs import Run, open_joined
from vlpipe.manifests.datasets.mad import VALUES
from vlpipe.manifests.writer import write_manifest

RECIPE = """
title = "t"
paper = "p"
reproduces = "r"

[settings]
folder = "FOLDER"
spec = "bundled:mad-clip"
set = ["own", "other"]
seed = [0, 1]

[[steps]]
run = "extract --manifest {folder}/{set} --cache {folder}/cache --encoder {spec} --workers 0"
over = ["set"]

[[steps]]
name = "sae"
run = '''
train-head sae --manifest {folder}/own --cache {folder}/cache --runs {folder}/runs --source image={spec}#pooled
'''
set = { latents = 26, k = 4, epochs = 1, batch_size = 16 }

[[steps]]
name = "live"
run = '''
train-backbone tevi --manifest {folder}/own --cache {folder}/cache --runs {folder}/runs --encoder {spec}
--source image={spec}#pooled::{sae} --out {folder}/live/{seed}
'''
over = ["seed"]
set = { seed = "{seed}", steps = 2, batch_size = 6, lr = 0.01, text_lr = 0.01, objective = { hidden = 8 } }

[[steps]]
run = "extract --manifest {folder}/other --cache {folder}/cache --encoder {live.encoder} --side text"
over = ["seed"]

[[steps]]
name = "scores"
run = "eval --run={live} --manifest {folder}/other --split all --runs {folder}/runs"
over = ["seed"]

[[numbers]]
title = "T"
of = "scores"
columns = [{ title = "R@1", metric = "i2t_recall@1" }, { title = "R@5", metric = "t2i_recall@5" }]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The file, and its two manifests: noise in the size of digits, a caption each."""
    rng = np.random.default_rng(0)
    for name in ("own", "other"):
        images, texts = [], []
        for n in range(24):
            picture = f"{name}{n}.png"
            Image.fromarray(rng.integers(0, 256, (28, 28, 3), np.uint8)).save(tmp_path / picture)
            images.append({"image_id": f"i{n}", "path": picture, "split": "train" if n % 3 else "test"})
            text = "-".join(str(rng.choice(values)) for values in list(VALUES.values())[:4])
            texts.append({"text_id": f"t{n}", "text": text, "image_id": f"i{n}", "role": "caption"})
        folder = tmp_path / "out" / name
        write_manifest(folder, name=name, source="s", licence="l", image_root=tmp_path, images=images, texts=texts)
    (tmp_path / "mine.toml").write_text(RECIPE.replace("FOLDER", str(tmp_path / "out")), encoding="utf-8")
    return tmp_path / "mine.toml"


def test_run_whole_and_again(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = recipe.parent / "out"
    assert pipeline.run(["recipe", "run", str(recipe), "--json"]) == 0, capsys.readouterr().err
    told = capsys.readouterr()
    first = json.loads(told.out)["numbers"]
    assert told.err.count("$ vlpipe train-backbone") == 2 * 2
    assert told.err.count("$ vlpipe extract") == 2 + 2 * 2
    runs = [Run.open(out / "runs", path.name) for path in sorted((out / "runs").glob("tevi-*"))]
    expected = [by_hand(run, out / "other") for run in runs]
    assert len(expected) == 2
    for place, line in enumerate(first):
        assert sorted(line["values"]) == pytest.approx(sorted(100 * pair[place] for pair in expected))
    kept = {path: file_digest(path) for path in out.rglob("*") if path.is_file()}
    assert pipeline.run(["recipe", "run", str(recipe), "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["numbers"] == first
    assert told.err.count("$ vlpipe train-backbone") == 2
    assert told.err.count("nothing computed again") == 2
    again = {path: file_digest(path) for path in out.rglob("*") if path.is_file()}
    assert [str(path) for path in kept | again if kept.get(path) != again.get(path)] == []


def by_hand(run: Run, other: Path) -> tuple[float, float]:
    """Recall@1 of the images, @5 of the texts, with texts that the trained encoder gives now."""
    joined = open_joined(run, other)
    images = joined.image_batch(np.arange(24))
    words = joined.text_batch(np.arange(24), "text").columns["text"]
    encoder: Any = load_encoder(run.sources["text"].partition("#")[0], {"device": "cpu"})
    rows = encoder.encode(encoder.collate([encoder.prepare(TextItem(w, w)) for w in words]), ("pooled",))["pooled"]
    head = run.head().double()
    with torch.no_grad():
        texts = head.texts(Batch([""] * 24, {"text": rows.half().double()}))
        scores = head.score(head.images(images), texts).numpy()
    ranks = [[sum(row >= row[own]) for own, row in enumerate(every)] for every in (scores, scores.T)]
    return float(np.mean([rank <= 1 for rank in ranks[0]])), float(np.mean([rank <= 5 for rank in ranks[1]]))


@pytest.mark.parametrize(
    ("good", "wrong", "told"),
    [
        ("{live.encoder}", "{live.encodr}", "did you mean 'live.encoder'"),
        ("{live.encoder}", "{liv.encoder}", "no setting or step is named 'liv'"),
        ("{live.encoder}", "{sae.encoder}", "no run or encoder of step 'sae' is named 'sae.encoder'; "),
        ("--encoder {spec} --workers", "--encoder {live.encoder} --workers", "before step 'live' has run"),
        ("--source image={spec}#pooled::{sae} --out", "--out", "no run or encoder of step 'live' is named 'live'"),
        ("{live.encoder} --side", "{live.encoder} --set batch=2 --side", "no setting is named 'batch'"),
        (
            "steps = 2,",
            "step = 2,",
            "step 3 (train-backbone tevi): no setting is named 'step'; did you mean 'steps'",
        ),
        ("text_lr = 0.01,", "", "step 3 (train-backbone tevi): text_lr: 'tevi' needs the rate"),
        ("{ hidden = 8 }", '{ head = "text_adapter", hidden = 8 }', "no setting is named 'hidden'"),
        ("{ hidden = 8 }", "{ hidden = 8 }, encoder = { devise = 1 }", "no setting is named 'devise'"),
        (
            "--source image={spec}#pooled\n",
            "--source img={spec}#pooled\n",
            "step 2 (train-head sae): no role is named 'img'; did you mean 'image'",
        ),
        (
            "--source image={spec}#pooled::",
            "--source img={spec}#pooled::",
            "step 3 (train-backbone tevi): no role is named 'img'; did you mean 'image'",
        ),
        ("--source image={spec}#pooled::", "--source {spec}#pooled::", "with role one of image"),
        ("bundled:mad-clip", "bundld:mad-clip", "did you mean 'bundled'"),
        ("--encoder {spec}\n", "--encoder 'bundled:mad-clip@./no.pt::{sae}'\n", "'./no.pt' does not exist"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(
    recipe: Path, good: str, wrong: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.write_text(recipe.read_text("utf-8").replace(good, wrong), encoding="utf-8")
    assert pipeline.run(["recipe", "run", str(recipe)]) == (1 if "not exist" in told else 2)
    said = capsys.readouterr().err
    assert told in said
    assert len(said.splitlines()) == 1
    assert not (recipe.parent / "out" / "cache").exists()


def test_an_evaluation_says_which_texts_are_missing(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = recipe.read_text("utf-8")
    start, end = (
        kept.index('[[steps]]\nrun = "extract --manifest {folder}/other'),
        kept.index('[[steps]]\nname = "scores"'),
    )
    recipe.write_text(kept[:start] + kept[end:], encoding="utf-8")
    assert pipeline.run(["recipe", "run", str(recipe)]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"vlpipe extract --manifest {recipe.parent}/out/other --encoder bundled:mad-clip@" in said
    assert "--side text --output pooled" in said
