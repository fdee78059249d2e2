"""A checkpoint that is dear to write is written seldom; the log has every epoch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from vlpipe.heads import checkpoint
from vlpipe.heads.checkpoint import SHARE, Checkpoint


class Clock:
    """Seconds that pass only when told; writing takes `cost`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost: float) -> None:
        self.now, self.writes = 100.0, 0
        original = checkpoint.save_tensors

        def save(path: Path, tensors: dict[str, torch.Tensor]) -> None:
            self.now += cost
            self.writes += 1
            original(path, tensors)

        monkeypatch.setattr(checkpoint, "save_tensors", save)
        monkeypatch.setattr(checkpoint.time, "monotonic", lambda: self.now)


@pytest.mark.parametrize("writers", [1, 4])
def test_they_take_their_share_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writers: int) -> None:
    """Also several runs that train as one take it together: 1,000 s at most hold 10 writes and the first ones."""
    clock, head = Clock(monkeypatch, cost=1.0), nn.Linear(2, 2)
    kept = [Checkpoint(tmp_path / str(number)) for number in range(writers)]
    for each in kept:
        each.path.parent.mkdir()
        each.writers = writers
    for epoch in range(1, 101):
        clock.now += 10
        for each in kept:
            each.save(head, epoch, {"loss": 1.0})
    assert 0.5 * SHARE < (clock.writes - writers) / (clock.now - 100) <= SHARE
    done = Checkpoint(kept[0].path.parent).load(head)[0]
    assert 50 < done < 100
    log = kept[0].log.read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in log] == list(range(1, done + 1))


def test_long_epochs_are_always_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, head, kept = Clock(monkeypatch, cost=0.1), nn.Linear(2, 2), Checkpoint(tmp_path)
    for epoch in range(1, 11):
        clock.now += 0.1 / SHARE
        kept.save(head, epoch, {})
    assert clock.writes == 10


def test_the_one_that_says_stop_is_always_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, head, kept = Clock(monkeypatch, cost=1.0), nn.Linear(2, 2), Checkpoint(tmp_path)
    kept.save(head, 1, {})
    kept.save(head, 2, {}, stopped=True)
    assert Checkpoint(tmp_path).load(head) == (2, {}, True)
