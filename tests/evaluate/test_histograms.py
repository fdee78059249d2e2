"""Cosines of images and captions as curves: of a run alone, and of a first run beside one that edits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from vlpipe.evaluate import commands, histograms
from vlpipe.evaluate.contracts import Rows
from vlpipe.evaluate.run import evaluate
from vlpipe.heads.runs import Run, open_joined

Place = Any
FAST = {"epochs": 2, "batch_size": 16, "lr": 0.01}


def cosines_by_hand(made: Place, run_id: str) -> np.ndarray[Any, Any]:
    """Of each test caption and its image as the run scores them, in float64."""
    head, joined = Run.open(made.runs, run_id).head().double(), open_joined(Run.open(made.runs, run_id))
    texts = joined.texts_of(joined.images("test"), ["caption"])
    images = head.images(joined.image_batch(joined.text_image[texts]))
    found: np.ndarray[Any, Any] = (
        head.score_pairs(images, head.texts(joined.text_batch(texts, "text"))).detach().numpy()
    )
    return found


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    kept: list[Figure] = []
    monkeypatch.setattr(histograms, "save", lambda figure, path: kept.append(figure) or path)
    return kept


def heights(figure: Figure) -> list[list[float]]:
    return [[bar.get_height() for bar in bars] for bars in figure.axes[0].containers]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_frozen_run_lies_beside_the_edited_one(place: Callable[..., Place], drawn: list[Figure]) -> None:
    made = place()
    frozen, masked = made.train(), made.train("smartclip", **FAST)
    both = [evaluate(made.runs, run, "pair_cosines") for run in (frozen, masked)]
    paths = both[0].made_by.draw(both, Path("f"))  # type: ignore[attr-defined]
    assert [path.name for path in paths] == [
        f"pair_cosines-test-{runs}.png" for runs in (frozen, masked, f"{frozen}-{masked}")
    ]
    before, after = (cosines_by_hand(made, run) for run in (frozen, masked))
    edges = np.histogram_bin_edges(np.concatenate([before, after]), 60)
    expected = [np.histogram(values, edges)[0].tolist() for values in (before, after)]
    assert heights(drawn[2]) == expected
    assert legend(drawn[2]) == [
        f"{frozen}, not edited, mean {before.mean():.3f}", f"{masked}, edited, mean {after.mean():.3f}"
    ]  # fmt: skip
    assert both[0].entries["cosine_original"].value == pytest.approx(before.mean(), abs=1e-6)
    assert [label.rpartition(",")[0] for figure in drawn[:2] for label in legend(figure)] == [
        "not edited", "image not edited, this run's text", "image edited"
    ]  # fmt: skip
    drawn.clear()
    assert len(both[0].made_by.draw(both[::-1], Path("f"))) == 2  # type: ignore[attr-defined]


def test_two_runs_are_compared_on_the_captions_that_both_have(
    place: Callable[..., Place], drawn: list[Figure]
) -> None:
    made = place()
    ids = made.train(), made.train("smartclip", **FAST)
    first, other = (evaluate(made.runs, run, "pair_cosines") for run in ids)
    order = np.random.default_rng(0).permutation(len(other.rows))[:10]
    few = replace(other, rows=other.rows.take(order, other.rows.image[order]))
    histograms.draw([first, few], Path("f"))
    assert [sum(bars) for bars in heights(drawn[-1])] == [10, 10]
    named = dict(zip(first.rows.query_ids, first.rows.values["original"], strict=True))
    mean = np.mean([named[query] for query in few.rows.query_ids])
    assert legend(drawn[-1])[0].endswith(f"mean {mean:.3f}")
    none = Rows(other.rows.query_ids + "x", other.rows.image, other.rows.values)
    assert len(histograms.draw([first, replace(other, rows=none)], Path("f"))) == 2


def test_a_mask_that_keeps_all_rebuilds_images_and_edits_none(
    place: Callable[..., Place], drawn: list[Figure]
) -> None:
    made = place()
    sae = made.train("sae", latents=12, k=4, **FAST)
    still = made.train("tevi", sources=(f"image=enc:a#pooled::{sae}",), mask="none", epochs=0)
    histograms.draw([evaluate(made.runs, still, "pair_cosines")], Path("f"))
    assert legend(drawn[0])[1].startswith("image rebuilt, mean")


def test_figures_of_another_manifest_and_of_other_settings_lie_beside_the_own_ones(
    place: Callable[..., Place],
) -> None:
    made, more = place(), place(images=40, name="more").manifest
    run = made.train()
    for asked in ([], ["--manifest", str(more.folder)], ["--set", "ks=[1]"], ["--run", made.train(seed=1)]):
        words = ["--run", run, "--runs", str(made.runs), *asked]
        done = CliRunner().invoke(commands.evaluate, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
    names = sorted(path.name for path in (made.runs / "figures").glob("*-recall.png"))
    assert len(names) == 4
    assert f"retrieval-test-{run}-recall.png" in names
    assert sum(f"-{run}-more-" in name for name in names) == 1
