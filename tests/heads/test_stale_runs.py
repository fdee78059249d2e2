"""Runs that are no longer of what they were trained on, and folders that are damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from vlpipe.foundation.errors import StaleError, UnknownNameError, VlpipeError
from vlpipe.foundation.files import write_atomic
from vlpipe.heads.folder import CONFIG, STATUS
from vlpipe.heads.runs import Run, open_joined

World = Any
Maker = Callable[..., World]


def test_other_features_under_the_same_name_are_stale(world: Maker, tmp_path: Path) -> None:
    made = world()
    run = made.trained("identity").run
    made.cache.rename(tmp_path / "old")
    made.store("enc:a", "image", np.ones((40, 6)), weights="w9")
    made.store("enc:a", "text", np.ones((120, 6)))
    with pytest.raises(StaleError, match="weights: cached 'w9', asked 'w0'"):
        open_joined(run)
    assert open_joined(run, cache=tmp_path / "old").images("test").tolist() == list(range(3, 40, 4))


def test_replaced_pictures_are_another_run_and_the_old_one_is_stale(world: Maker) -> None:
    made = world()
    run = made.trained("identity").run
    data = open_joined(run)
    assert data.content() == {role: found["content"] for role, found in run.provenance.items()}
    assert len(set(data.content().values())) == 2
    rows = made.arrays["enc:a", "image"]
    made.store("enc:a", "image", rows, content=1, again=True)  # a picture that is encoded to the same values
    with pytest.raises(StaleError, match=r"pictures of .*encoded anew.*`vlpipe train-head` makes a new run"):
        open_joined(run)
    new = made.trained("identity")
    assert (new.action, new.run.id != run.id) == ("trained", True)
    assert open_joined(new.run).content()["text"] == data.content()["text"]
    made.store("enc:a", "image", rows, content=0, again=True)
    assert made.trained("identity").run.id == run.id
    assert open_joined(run).content() == data.content()


def test_a_damaged_run_does_not_stand_in_the_way_of_others(world: Maker) -> None:
    made = world()
    run, other, third = (made.trained("identity", temperature=t).run for t in (0.1, 0.2, 0.3))
    (other.folder / STATUS).write_text("{")
    (third.folder / CONFIG).write_text("kind = ")
    assert Run.open(made.runs, run.id).head()
    told: list[VlpipeError] = []
    assert [found.id for found in Run.list(made.runs, told.append)] == [run.id]
    assert sorted(str(error).split("'")[1] for error in told) == sorted(
        [str(other.folder / STATUS), str(third.folder / CONFIG)]
    )
    assert [found.id for found in Run.list(made.runs)] == [run.id]
    with pytest.raises(UnknownNameError, match=third.id):
        Run.open(made.runs, "nothing")
    for outside in ("", ".", f"../{made.runs.name}/{run.id}"):
        with pytest.raises(UnknownNameError):
            Run.open(made.runs, outside)
    (other.folder / STATUS).write_text("[]")
    with pytest.raises(VlpipeError, match="damaged"):
        Run.open(made.runs, other.id)


def test_an_older_head_is_stale(world: Maker) -> None:
    made = world()
    run = made.trained("identity").run
    record = run.record | {"code": 0}
    write_atomic(run.folder / CONFIG, tomli_w.dumps(record).encode())
    with pytest.raises(StaleError, match="version 0"):
        Run.open(made.runs, run.id).head()
