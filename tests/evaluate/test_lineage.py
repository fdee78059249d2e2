from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vlpipe.evaluate.bootstrap import Bootstrap
from vlpipe.evaluate.results import LEDGER, latest, over_seeds, read
from vlpipe.evaluate.run import evaluate
from vlpipe.heads.kinds.identity import Identity

Maker = Callable[..., Any]


def sizes(made: Any, *runs: str) -> list[int]:
    """How many runs each line over seeds holds, once these runs are evaluated, too."""
    for run in runs:
        evaluate(made.runs, run, options={"ks": [1]}, bootstrap=Bootstrap(replicates=2))
    lines = over_seeds(latest(read(made.runs / LEDGER)))
    return [line.numbers["i2t_recall@1"].n for line in lines]  # type: ignore[union-attr]


def test_only_seeds_may_differ(place: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = place(images=30)
    assert sizes(made, made.train(seed=0), made.train(seed=1)) == [2]
    assert sizes(made, made.train(seed=2, temperature=0.5)) == [2, 1]
    assert sizes(made, made.train(seed=3, rule="random:0.5/0.2/0.3@1")) == [2, 1, 1]
    assert sizes(made, made.train(seed=4, rule="random:0.5/0.2/0.3@2")) == [2, 1, 1, 1]
    monkeypatch.setattr(Identity, "code", 2)
    assert sizes(made, made.train(seed=5)) == [2, 1, 1, 1, 1]


def test_seeds_of_upstream_runs_count_as_seeds(place: Maker) -> None:
    made = place(images=30)

    def on_top(seed: int, upstream: int, **settings: Any) -> str:
        below = made.train(seed=upstream, **settings)
        run: str = made.train(seed=seed, sources=(f"image=enc:a#pooled::{below}",))
        return run

    assert sizes(made, on_top(0, 0), on_top(0, 1), on_top(1, 1)) == [3]
    assert sizes(made, on_top(0, 2, temperature=0.5)) == [3, 1]
    assert sizes(made, made.train(seed=7)) == [3, 1, 1]


def test_the_same_settings_on_other_pictures_are_no_other_seed(place: Maker) -> None:
    made = place(images=30)
    assert sizes(made, made.train(seed=0), made.train(seed=1)) == [2]
    made.again(made.x + 0.1, made.y, mark=1000)
    assert sizes(made, made.train(seed=0)) == [2, 1]
