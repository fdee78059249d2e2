"""A head that looks at validation rows after every epoch may end its training, also over a restart."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vlpipe.heads import training
from vlpipe.heads.contracts import SHELF, Monitored
from vlpipe.heads.folder import WEIGHTS

World = Any
Maker = Callable[..., World]
KIND = "patient_head:Patient"


class Stop(Exception):  # noqa: N818
    """A power cut."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    head = SHELF.load(KIND)
    monkeypatch.setattr(f"{head.__module__}.SEEN", [])
    return head


def seen(patient: Any) -> list[tuple[int, tuple[int, ...], bool]]:
    found: list[tuple[int, tuple[int, ...], bool]] = sys.modules[patient.__module__].SEEN
    return found


def log(made: World, run_id: str) -> list[int]:
    lines = (made.runs / run_id / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["epoch"] for line in lines]


def test_training_ends_when_the_head_says_so_with_its_best_weights(world: Maker, patient: Any) -> None:
    made = world()
    assert isinstance(patient(patient.Config(), None), Monitored)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    run = made.trained(KIND).run
    assert torch.equal(torch.rand(1), expected)
    assert log(made, run.id) == [1, 2, 3, 4, 5]
    assert run.head().number == 3
    assert seen(patient) == [(n, (10, 3, 6), False) for n in range(1, 6)]  # 10 images of "val", all their texts


def test_a_head_that_never_stops_does_all_epochs(world: Maker, patient: Any) -> None:
    made = world()
    run = made.trained(KIND, best=99).run
    assert log(made, run.id) == list(range(1, 11))
    assert run.head().number == 10


@pytest.mark.parametrize("dies", [1, 4])
def test_resumed_equals_uninterrupted(
    world: Maker, patient: Any, monkeypatch: pytest.MonkeyPatch, dies: int
) -> None:
    made = world()
    original = patient.update

    def update(self: Any, batch: Any) -> dict[str, float]:
        if self.number >= dies:
            raise Stop
        return dict(original(self, batch))

    with monkeypatch.context() as patch:
        patch.setattr(patient, "update", update)
        with pytest.raises(Stop):
            made.trained(KIND)
    resumed = made.trained(KIND)
    assert (resumed.action, resumed.run.head().number) == ("resumed", 3)
    made.runs.rename(made.root / "first")
    straight = made.trained(KIND).run
    first = made.root / "first" / straight.id
    assert (first / WEIGHTS).read_bytes() == (straight.folder / WEIGHTS).read_bytes()


def test_a_stopped_run_that_died_before_its_end_does_not_go_on(
    world: Maker, patient: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world()

    def die(*_: Any) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(training, "save_tensors", die)
        with pytest.raises(Stop):
            made.trained(KIND)
    resumed = made.trained(KIND)
    assert (resumed.action, log(made, resumed.run.id)) == ("resumed", [1, 2, 3, 4, 5])
    assert resumed.run.head().number == 3
    assert len(seen(patient)) == 5
