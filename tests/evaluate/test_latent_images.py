"""The strongest images of each latent: which ones, under which name, and drawn where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from matplotlib.figure import Figure
from PIL import Image

from vlpipe.evaluate import latent_images, scoring
from vlpipe.evaluate import results as ledger
from vlpipe.evaluate.commands import evaluate as evaluate_command
from vlpipe.evaluate.contracts import Inputs, NothingToScoreError
from vlpipe.evaluate.metrics.latents import Latents
from vlpipe.evaluate.run import evaluate
from vlpipe.foundation.errors import UnknownNameError, VlpipeError
from vlpipe.heads.runs import Run, open_joined

Place = Any
FAST = {"epochs": 2, "batch_size": 16, "lr": 0.01}


@pytest.fixture
def made(place: Callable[..., Place]) -> Place:
    """Pictures whose red channel is their number."""
    found = place(images=24)
    for n in range(24):
        Image.new("RGB", (4, 4), (n, 0, 0)).save(found.root / f"{n}.jpg", quality=100)
    return found


def codes_by_hand(made: Place, sae: str) -> np.ndarray[Any, Any]:
    """(test images, latents): test images are the odd ones."""
    run = Run.open(made.runs, sae)
    rows = open_joined(run).image_batch(np.arange(1, 24, 2)).x["image"]
    values, indices = run.head().double().codes(rows.double())
    dense = torch.zeros(12, 12, dtype=values.dtype).scatter(1, indices, values)
    found: np.ndarray[Any, Any] = dense.detach().numpy()
    return found


def test_a_run_of_images_alone_shows_its_strongest_images(made: Place) -> None:
    sae = made.train("sae", latents=12, k=3, **FAST)
    code = codes_by_hand(made, sae)
    latent = int(code.max(axis=0).argmax())
    done = evaluate(made.runs, sae, "latents", options={"latents": [latent], "count": 4})
    active = [n for n in np.argsort(-code[:, latent], kind="stable") if code[n, latent] > 0][:4]
    assert done.rows.values["picture"].tolist() == [f"i{2 * n + 1}" for n in active]
    assert done.rows.values["activation"] == pytest.approx(code[active, latent], abs=1e-5)
    assert done.rows.values["name"].tolist() == [str(latent)] * len(active)
    assert done.entries[f"active_share:{latent}"].value == pytest.approx((code[:, latent] > 0).mean())
    assert done.entries[f"active_share:{latent}"].rows == len(active)
    assert done.notes == []
    again = evaluate(made.runs, sae, "latents", options={"latents": [latent], "count": 4})
    assert again.reused
    assert again.rows.values["picture"].tolist() == done.rows.values["picture"].tolist()
    with pytest.raises(NothingToScoreError, match="reads no texts"):
        evaluate(made.runs, sae)


def test_the_table_names_latents_that_all_runs_call_the_same(made: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger's keys keep the number alone, so that seeds can be averaged."""
    ids = [made.train("sae", latents=12, k=12, seed=seed, **FAST) for seed in range(2)]
    special = [{3: "red", 5: "blue", 8: "green"}, {3: "grey", 5: "blue"}]  # 7: a number as its name
    names = iter([own.get(n, str(n)) for n in range(12)] for own in special)
    codes_of = scoring.codes_of
    monkeypatch.setattr(scoring, "codes_of", lambda scorer: replace(codes_of(scorer), names=next(names)))  # type: ignore[type-var]
    given = [word for run in ids for word in ("--run", run)]
    chosen = ["--runs", str(made.runs), "--task", "latents", "--set", "latents=[3,5,7,8]"]
    done = CliRunner().invoke(evaluate_command, [*given, *chosen])
    assert done.exit_code == 0, done.stderr
    titles = [line.split("│")[1].strip() for line in done.stdout.splitlines() if line.count("│") > 2]
    assert titles == ["latent 3", "blue (5)", "latent 7", "latent 8"]
    kept = {entry.metric for entry in ledger.read(made.runs / ledger.LEDGER)}
    assert kept == {f"active_share:{n}" for n in (3, 5, 7, 8)}


def test_without_a_choice_the_active_ones_are_shown(made: Place) -> None:
    sae = made.train("sae", latents=12, k=3, **FAST)
    code = codes_by_hand(made, sae)
    done = evaluate(made.runs, sae, "latents")
    active = [n for n in range(12) if (code[:, n] > 0).any()]
    assert list(dict.fromkeys(done.rows.values["latent"].tolist())) == active
    silent = [n for n in range(12) if n not in active]
    if silent:
        done = evaluate(made.runs, sae, "latents", options={"latents": silent})
        assert f"no image activates latent {silent[0]}" in done.notes[0]
    with pytest.raises(UnknownNameError, match="0 to 11"):
        evaluate(made.runs, sae, "latents", options={"latents": [12]})
    with pytest.raises(VlpipeError, match="this head has no latents"):
        evaluate(made.runs, made.train(), "latents")


def test_a_head_on_an_autoencoder_shows_the_same_images(made: Place) -> None:
    sae = made.train("sae", latents=12, k=3, **FAST)
    tevi = made.train("tevi", sources=(f"image=enc:a#pooled::{sae}",), **FAST)
    alone, under = (evaluate(made.runs, run, "latents") for run in (sae, tevi))
    assert alone.rows.values["picture"].tolist() == under.rows.values["picture"].tolist()


def test_names_are_the_nearest_prompts_and_silent_latents_have_no_picture() -> None:
    """Three latents: one of both images, one of none, one of the second; prompts lie near the first and last."""
    codes: Any = SimpleNamespace(
        names=["0", "1", "2"],
        strongest=lambda count: (
            torch.tensor([[3.0, 1.0], [0.0, 0.0], [2.0, 0.0]]),
            np.array([[1, 0], [-1, -1], [1, -1]]),
        ),
        times=lambda: np.array([2, 0, 1]),
    )
    edits: Any = SimpleNamespace(nearest=lambda prompts: np.array([0, 0, 1]))
    inputs = Inputs(
        ["a", "b"],
        ["t", "p", "q"],
        np.array([0, -1, -1]),
        lambda i, t: torch.zeros(1),
        columns={"role": ["caption", "prompt", "prompt"], "text": ["x", "red", "blue"]},
        edits=edits,
        codes=codes,
    )
    metric = Latents([2, 0, 1], 2)
    rows = metric.rows(inputs)
    assert rows.values["name"].tolist() == ["blue", "red", "red", "red"]
    assert rows.values["picture"].tolist() == ["b", "b", "a", None]
    assert metric.summarise(rows) == {"active_share:0": 1.0, "active_share:1": 0.0, "active_share:2": 0.5}
    assert metric.counts(rows) == {"active_share:0": 2, "active_share:1": 0, "active_share:2": 1}
    plain = Latents([0], 2).rows(replace(inputs, edits=None))
    assert plain.values["name"].tolist() == ["0", "0"]
    silent: Any = SimpleNamespace(
        names=codes.names, strongest=codes.strongest, times=lambda: np.zeros(3, dtype=int)
    )
    with pytest.raises(VlpipeError, match="no image of this split activates a latent"):
        Latents().rows(replace(inputs, codes=silent))


def test_rows_are_latents_and_pictures_the_strongest_images(made: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sae = made.train("sae", latents=12, k=3, **FAST)
    code = codes_by_hand(made, sae)
    strong = np.argsort(-code.max(axis=0))[:2].tolist()
    done = evaluate(made.runs, sae, "latents", options={"latents": strong, "count": 3})
    drawn: list[Figure] = []
    monkeypatch.setattr(latent_images, "save", lambda figure, path: drawn.append(figure) or path)
    (path,) = latent_images.draw([done], Path("figures"))
    assert path == Path("figures") / f"latents-test-{sae}-{done.apart}.png"
    (plain,) = latent_images.draw([evaluate(made.runs, sae, "latents")], Path("figures"))
    assert plain == Path("figures") / f"latents-test-{sae}.png"
    cells = drawn[0].axes
    assert len(cells) == 6
    assert [cell.get_ylabel() for cell in cells] == [str(strong[0]), "", "", str(strong[1]), "", ""]
    first = [int(np.asarray(cell.images[0].get_array())[0, 0, 0]) for cell in cells[:3] if cell.images]
    active = [n for n in np.argsort(-code[:, strong[0]], kind="stable") if code[n, strong[0]] > 0][:3]
    assert first == pytest.approx([2 * n + 1 for n in active], abs=2)
