"""Heads that train as one: the same draws, weights, logs and folders as each alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.progress import silent
from vlpipe.heads import stack
from vlpipe.heads.checkpoint import Checkpoint
from vlpipe.heads.commands import train_head
from vlpipe.heads.folder import WEIGHTS, Run
from vlpipe.heads.kinds.tpc import Tpc
from vlpipe.heads.loop import Learner, train
from vlpipe.heads.stack import Stack, train_together, trait
from vlpipe.heads.sweep import Member, Request, run_sweep

World = Any
Maker = Callable[..., World]
JAM = {"hidden": [8], "latent": 4, "batch_size": 8, "epochs": 4, "check_every": 2, "lr": 1e-2, "weight_decay": 0.1}
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}  # float32, some steps later


def texts(images: int) -> list[dict[str, Any]]:
    """Two captions an image, with 0, 1 or 2 hard negatives each."""
    rows: list[dict[str, Any]] = []
    for n, k in product(range(images), range(2)):
        own = {"text_id": f"t{n}.{k}", "text": f"caption {n} {k}", "image_id": f"i{n}", "role": "caption"}
        rows.append(own)
        for j in range((n + k) % 3):
            wrong = {"text_id": f"t{n}.{k}#{j}", "text": f"wrong {n} {k} {j}", "role": "hard_negative"}
            rows.append(wrong | {"image_id": f"i{n}", "source_text_id": f"t{n}.{k}"})
    return rows


def swept(
    made: World, kind: str, together: int, lists: Mapping[str, Sequence[Any]], runs: str, **settings: Any
) -> list[Member]:
    opener = made.plan(kind, **settings).opener
    request = Request(kind, opener, made.root / runs, encoder="enc:a", together=together)
    return list(run_sweep(request, settings, lists))


def without(name: str) -> dict[str, Any]:
    """JAM's settings but one."""
    return {n: v for n, v in JAM.items() if n != name}


def weights(member: Member) -> dict[str, torch.Tensor]:
    assert member.outcome is not None, member.error
    return load_file(member.outcome.run.folder / WEIGHTS)


def log(member: Member) -> list[dict[str, float]]:
    assert member.outcome is not None
    return [json.loads(line) for line in (member.outcome.run.folder / "log.jsonl").read_text().splitlines()]


def assert_alike(together: Sequence[Member], alone: Sequence[Member]) -> None:
    assert len(together) == len(alone)
    for one, other in zip(together, alone, strict=True):
        assert one.outcome is not None
        assert other.outcome is not None
        assert one.varied == other.varied
        assert one.outcome.run.id == other.outcome.run.id
        assert one.outcome.run.record == other.outcome.run.record
        assert {p.name for p in one.outcome.run.folder.iterdir()} == {
            p.name for p in other.outcome.run.folder.iterdir()
        }
        torch.testing.assert_close(weights(one), weights(other), **TOLERANCE)
        assert [line["epoch"] for line in log(one)] == [line["epoch"] for line in log(other)]
        for ours, theirs in zip(log(one), log(other), strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
        assert one.outcome.run.scalars == pytest.approx(other.outcome.run.scalars, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "settings", "lists"),
    [
        ("jam", {**JAM, "negatives": 2, "dropout": 0.3}, {"alpha": [0.1, 0.9], "lambda_start": [1.0, 0.0]}),
        ("jam", {**JAM, "objective": "negcon", "denominator": "printed"}, {"weight_decay": [0.0, 2.0]}),
        ("jam", {**JAM, "objective": "con", "reconstruction": False}, {"clip_norm": [0.01, 5.0]}),
        ("jam", {**JAM, "temperature": 0.1}, {"schedule": ["linear", "grid", "fixed"]}),
        ("projection", {**JAM, "layers": "nonlinear", "dropout": 0.2}, {"lr": [1e-2, 1e-3], "warmup": [0.0, 0.5]}),
        ("tpc", {"batch_size": 8, "epochs": 3, "views": 2}, {"lr": [1e-2, 1e-3], "lambda_nc": [0.0, 2.0]}),
    ],
)
def test_each_equals_itself_trained_alone(
    world: Maker, kind: str, settings: dict[str, Any], lists: dict[str, list[Any]]
) -> None:
    made = world(images=40, texts=texts(40))
    lists = lists | {"seed": [5, 42]}
    settings = {k: v for k, v in settings.items() if k not in lists}
    if kind == "projection":
        settings.pop("hidden", None)
    together = swept(made, kind, 16, lists, "together", **settings)
    assert_alike(together, swept(made, kind, 1, lists, "alone", **settings))
    differ = [weights(member) for member in together]
    name = max(differ[0], key=lambda n: differ[0][n].numel())
    assert len({tuple(found[name].flatten().tolist()) for found in differ}) == len(differ)


def learners(made: World, seeds: Sequence[int], folder: str, **settings: Any) -> list[Learner]:
    """Heads in double precision, with a checkpoint each."""
    found = []
    for seed in seeds:
        plan = made.plan("jam", seed=seed, **settings)
        torch.manual_seed(seed)
        head = plan.head(plan.config, plan.joined.shapes()).double()  # type: ignore[attr-defined]
        path = made.root / folder / str(seed)
        path.mkdir(parents=True)
        found.append(Learner(head, plan.joined, plan.config, Checkpoint(path), "cpu"))
    return found


def test_in_double_precision_only_rounding_is_left(world: Maker) -> None:
    made = world(images=40, texts=texts(40))
    settings = {**JAM, "negatives": 2, "dropout": 0.3}
    together = learners(made, [1, 2, 3], "together", **settings)
    alone = learners(made, [1, 2, 3], "alone", **settings)
    ends = dict(train_together(together, silent))
    for number, (one, other) in enumerate(zip(together, alone, strict=True)):
        assert ends[number] == pytest.approx(train(other), rel=1e-10)
        torch.testing.assert_close(one.head.state_dict(), other.head.state_dict(), rtol=1e-9, atol=1e-11)


def test_one_stack_is_many_heads_and_not_one_at_a_time(world: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(images=40, texts=texts(40))
    sizes: list[int] = []
    original = Stack.__init__

    def counted(self: Stack, heads: Any) -> None:
        sizes.append(len(heads))
        original(self, heads)

    monkeypatch.setattr(Stack, "__init__", counted)
    swept(made, "jam", 3, {"latent": [3, 4], "seed": [1, 2, 3, 4]}, "runs", **JAM | {"latent": 4, "epochs": 1})
    assert sizes == [3, 3]  # of each width three, and one alone
    sizes.clear()
    swept(made, "jam", 16, {"epochs": [1, 3], "seed": [1, 2]}, "others", **without("epochs"))
    assert sizes == [4, 2]  # two have ended


def test_heads_that_differ_in_what_shapes_them_have_other_traits() -> None:
    assert trait(Tpc, Tpc.Config(lr=1.0, seed=3, epochs=2, gamma=0.5)) == trait(Tpc, Tpc.Config())
    assert trait(Tpc, Tpc.Config(views=2)) != trait(Tpc, Tpc.Config())
    assert trait(Tpc, Tpc.Config(batch_size=2)) != trait(Tpc, Tpc.Config())


@pytest.mark.parametrize("kind", ["ridge", "sae"])
def test_kinds_that_cannot_are_trained_in_turn(world: Maker, kind: str) -> None:
    settings = {"k": 2, "latents": 8, "epochs": 1} if kind == "sae" else {}
    found = swept(world(), kind, 16, {"seed": [1, 2]}, "runs", **settings)
    assert [member.outcome.action for member in found if member.outcome] == ["trained", "trained"]


def test_one_that_diverges_does_not_stop_the_others(world: Maker) -> None:
    made = world(images=40, texts=texts(40))
    settings = without("lr")
    lists = {"lr": [1e-2, 1e30, 1e-3]}
    together = swept(made, "jam", 16, lists, "together", **settings)
    alone = swept(made, "jam", 1, lists, "alone", **settings)
    assert str(together[1].error) == str(alone[1].error)
    assert "expected a finite number" in str(together[1].error)
    assert_alike(together[::2], alone[::2])


def test_one_whose_own_code_fails_does_not_stop_the_others(world: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(images=40, texts=texts(40))
    original = Tpc.configure

    def configure(self: Tpc, total_steps: int) -> None:
        if self.config.seed == 2:
            raise ZeroDivisionError("broken")
        original(self, total_steps)

    monkeypatch.setattr(Tpc, "configure", configure)
    found = swept(made, "tpc", 16, {"seed": [1, 2, 3]}, "runs", epochs=2, batch_size=8)
    assert [member.outcome is not None for member in found] == [True, False, True]
    assert "ZeroDivisionError: broken" in str(found[1].error)


class Stop(BaseException):
    """A power cut."""


def test_killed_ones_resume_together_and_to_the_bit(world: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(images=40, texts=texts(40))
    lists, settings = {"seed": [1, 2, 3]}, {**JAM, "dropout": 0.2}
    straight = swept(made, "jam", 16, lists, "straight", **settings)
    epochs = 0
    original = stack._epoch

    def dies(*given: Any) -> Any:
        nonlocal epochs
        epochs += 1
        if epochs == 3:
            raise Stop
        return original(*given)

    monkeypatch.setattr("vlpipe.heads.checkpoint.SHARE", np.inf)  # every epoch is kept
    with monkeypatch.context() as patch:
        patch.setattr(stack, "_epoch", dies)
        with pytest.raises(Stop):
            swept(made, "jam", 16, lists, "runs", **settings)
    resumed = swept(made, "jam", 16, lists, "runs", **settings)
    for one, other in zip(resumed, straight, strict=True):
        assert one.outcome is not None
        assert one.outcome.action == "resumed"
        assert all(torch.equal(weights(one)[name], tensor) for name, tensor in weights(other).items())
        assert log(one) == log(other)


def test_those_that_have_ended_are_finished_whatever_becomes_of_the_rest(
    world: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(images=40, texts=texts(40))
    lists, settings = {"epochs": [1, 2, 6]}, without("epochs")
    original = stack._epoch

    def dies(*given: Any) -> Any:
        if len(given[1]) == 1:
            raise ZeroDivisionError("broken")
        return original(*given)

    with monkeypatch.context() as patch:
        patch.setattr(stack, "_epoch", dies)
        found = swept(made, "jam", 16, lists, "runs", **settings)
    assert [member.outcome is not None for member in found] == [True, True, False]
    assert "ZeroDivisionError: broken" in str(found[2].error)
    again = swept(made, "jam", 16, lists, "runs", **settings)
    assert [member.outcome.action for member in again if member.outcome] == ["skipped", "skipped", "resumed"]


def test_finished_ones_are_skipped_and_the_rest_trained(world: Maker) -> None:
    made = world(images=40, texts=texts(40))
    first = swept(made, "tpc", 16, {"seed": [2]}, "runs", epochs=2, batch_size=8)
    found = swept(made, "tpc", 16, {"seed": [1, 2, 3]}, "runs", epochs=2, batch_size=8)
    assert [member.outcome.action for member in found if member.outcome] == ["trained", "skipped", "trained"]
    assert found[1].outcome is not None
    assert first[0].outcome is not None
    assert found[1].outcome.run.id == first[0].outcome.run.id


def test_another_process_has_one_of_them(world: Maker, tmp_path: Path) -> None:
    import fcntl

    made = world(images=40, texts=texts(40))
    settings = {"epochs": 2, "batch_size": 8}
    folder = tmp_path / "runs" / made.plan("tpc", seed=2, **settings).run_id()
    folder.mkdir(parents=True)
    with (folder / ".lock").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        found = swept(made, "tpc", 16, {"seed": [1, 2]}, "runs", **settings)
    assert isinstance(found[1].error, VlpipeError)
    assert "another process" in str(found[1].error)
    assert found[0].outcome is not None
    assert Run.open(tmp_path / "runs", found[0].outcome.run.id).state == "finished"


def test_rows_that_fail_for_all_are_told_of_each(world: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(images=40, texts=texts(40))

    def damaged(*_: Any) -> Any:
        raise VlpipeError("chunk 3 is damaged")

    monkeypatch.setattr(Learner, "batches", damaged)
    found = swept(made, "tpc", 16, {"seed": [1, 2]}, "runs", epochs=2, batch_size=8)
    assert [str(member.error) for member in found] == ["chunk 3 is damaged"] * 2


def test_the_command_trains_some_as_one(world: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(images=40, texts=texts(40))
    sizes: list[int] = []
    original = stack.train_together
    monkeypatch.setattr(
        "vlpipe.heads.training.train_together",
        lambda all_, advance: sizes.append(len(all_)) or original(all_, advance),
    )
    paths = ["--manifest", str(made.manifest.folder), "--cache", str(made.cache), "--encoder", "enc:a", "--json"]
    small = ["--set", "epochs=1", "--set", "batch_size=8", "--seeds", "1,2,3"]
    found = []
    for runs, together in (("one", ["--together", "2"]), ("two", [])):
        result = CliRunner().invoke(
            train_head, ["tpc", *paths, *small, "--runs", str(made.root / runs), *together]
        )
        assert result.exception is None, result.exception
        found.append([json.loads(line)["run"] for line in result.stdout.splitlines()])
    assert sizes == [2]  # the third is alone, and on a CPU nothing trains as one unasked
    assert found[0] == found[1]
