from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from vlpipe.cache_store.layout import Status
from vlpipe.foundation.errors import UnknownNameError, VlpipeError
from vlpipe.heads.contracts import SHELF, roles_of
from vlpipe.heads.folder import CONFIG, STATUS, WEIGHTS
from vlpipe.heads.kinds.tpc import Tpc
from vlpipe.heads.loop import batches
from vlpipe.heads.opening import Opener
from vlpipe.heads.runs import Run, open_joined
from vlpipe.heads.sources import parse_source
from vlpipe.heads.training import Plan

World = Any
Maker = Callable[..., World]
FAST = {"epochs": 3, "batch_size": 8, "lr": 1e-2}


def weights(run: Run) -> bytes:
    return (run.folder / WEIGHTS).read_bytes()


class Stop(Exception):  # noqa: N818
    """A power cut."""


def interrupted(made: World, monkeypatch: pytest.MonkeyPatch, after: int, **settings: Any) -> Path:
    """A tpc run that dies at its update number `after`, 0-based."""
    done = 0
    original = Tpc.update

    def update(self: Tpc, batch: Any) -> dict[str, float]:
        nonlocal done
        if done == after:
            raise Stop
        done += 1
        return original(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Tpc, "update", update)
        with pytest.raises(Stop):
            made.trained("tpc", **settings)
    return made.runs / made.plan("tpc", **settings).run_id()


def test_a_run_keeps_what_made_it_and_its_weights(world: Maker) -> None:
    made = world()
    run = made.trained("tpc", **FAST).run
    assert {path.name for path in run.folder.iterdir()} == {CONFIG, WEIGHTS, STATUS, "log.jsonl", ".lock"}
    assert run.config["lr"] == 1e-2
    assert run.config["tau_0"] == 0.07  # defaults too
    assert run.sources == {"image": "enc:a#pooled", "text": "enc:a#pooled"}
    assert run.fingerprints["image"] == {"weights": "w0", "layer": "pooled"}
    assert run.manifest_digest == made.manifest.digest
    lines = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert lines[0]["agree"] > lines[2]["agree"]
    assert run.scalars == {name: value for name, value in lines[2].items() if name not in ("epoch", "lr")}
    assert run.status["rows"]["images"] == {"train": 20, "val": 10, "test": 10}
    assert not run.head().training


def test_a_loaded_head_scores_as_the_trained_one(world: Maker) -> None:
    made = world()
    run = Run.open(made.runs, made.trained("tpc", **FAST).run.id)
    data, head = open_joined(run), run.head()
    texts = head.texts(data.text_batch(np.arange(10), "text"))
    state = load_file(run.folder / WEIGHTS)
    rows = made.arrays["enc:a", "text"][:10].astype(np.float32)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    expected = unit @ state["filter.weight"].numpy().T + state["filter.bias"].numpy()
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(texts.x["text"], expected, atol=1e-6)


def test_the_same_inputs_are_the_same_run_and_skipped(world: Maker) -> None:
    made = world()
    first = made.trained("tpc", **FAST)
    before = weights(first.run)
    again = made.trained("tpc", **FAST)
    assert (first.action, again.action) == ("trained", "skipped")
    assert again.run.id == first.run.id
    assert weights(again.run) == before


def test_another_input_is_another_run(world: Maker) -> None:
    made = world()
    ids = {made.plan("tpc", **FAST).run_id()}
    ids.add(made.plan("tpc", **(FAST | {"lr": 2e-2})).run_id())
    ids.add(made.plan("tpc", **FAST, seed=1).run_id())
    ids.add(made.plan("tpc", rule="random:0.5/0.3/0.2@0", **FAST).run_id())
    ids.add(made.plan("tpc", rule="random:0.5/0.3/0.2@1", **FAST).run_id())
    made.store("enc:b", "image", np.ones((40, 6)), weights="w1")
    ids.add(made.plan("tpc", sources={"image": "enc:b"}, **FAST).run_id())
    made.store("enc:c", "image", np.ones((40, 6)), weights="w1", status=[Status.FAILED] + [Status.OK] * 39)
    ids.add(made.plan("tpc", sources={"image": "enc:c"}, **FAST).run_id())
    assert len(ids) == 7


def test_paths_are_no_part_of_a_runs_identity(world: Maker, tmp_path: Path) -> None:
    made = world()
    before = made.plan("tpc").run_id()
    made.cache.rename(tmp_path / "elsewhere")
    opener = Opener(made.manifest.folder, tmp_path / "elsewhere", made.runs)
    old = plan_from(opener)
    assert old.run_id() == before


def plan_from(opener: Opener) -> Plan:
    config = Tpc.Config()
    sources = {"image": parse_source("enc:a"), "text": parse_source("enc:a")}
    return Plan("tpc", Tpc, config, opener.joined(roles_of(Tpc, config), sources), sources, opener)


@pytest.mark.parametrize("after", [1, 3, 5, 8])  # 3 batches an epoch: inside the first, at edges, in the last
def test_resumed_equals_uninterrupted_to_the_bit(
    world: Maker, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    made = world()
    folder = interrupted(made, monkeypatch, after, **FAST)
    with pytest.raises(VlpipeError, match=r"not finished.*resume"):
        Run.open(made.runs, folder.name)
    outcome = made.trained("tpc", **FAST)
    assert outcome.action == ("resumed" if after >= 3 else "trained")
    resumed, log = weights(outcome.run), (folder / "log.jsonl").read_text()
    made.runs.rename(made.root / "first")
    straight = made.trained("tpc", **FAST).run
    assert weights(straight) == resumed
    assert (straight.folder / "log.jsonl").read_text() == log


def test_a_log_line_without_its_checkpoint_is_written_once(world: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world()
    folder = interrupted(made, monkeypatch, 5, **FAST)
    with (folder / "log.jsonl").open("a") as file:
        file.write(
            '{"epoch": 2, "loss": 1.0}\n{"epoch": 3, "lo'
        )  # died between log and checkpoint, and in a write
    run = made.trained("tpc", **FAST).run
    lines = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert lines[1]["loss"] != 1.0


def test_ridge_resumes_from_its_sums(world: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world()
    ridge = SHELF.load("ridge")
    with monkeypatch.context() as patch:
        patch.setattr(ridge, "finish", lambda self: (_ for _ in ()).throw(Stop))
        with pytest.raises(Stop):
            made.trained("ridge", batch_size=8)
    outcome = made.trained("ridge", batch_size=8)
    assert outcome.action == "resumed"
    made.runs.rename(made.root / "first")
    straight = made.trained("ridge", batch_size=8).run
    assert weights(straight) == (made.root / "first" / straight.id / WEIGHTS).read_bytes()
    assert straight.scalars["validation_recall"] > 0.5


def test_a_damaged_file_is_an_error_that_says_what_to_do(world: Maker) -> None:
    made = world()
    run = made.trained("tpc", **FAST).run
    path, whole = run.folder / WEIGHTS, weights(run)
    flipped = bytearray(whole)
    flipped[-3] ^= 1
    for content in (bytes(flipped), whole[:-7], b"", b"no tensors at all"):
        path.write_bytes(content)
        with pytest.raises(VlpipeError, match=r"head.safetensors' is damaged.*train again"):
            Run.open(made.runs, run.id).head()
    path.unlink()
    with pytest.raises(VlpipeError, match="is missing"):
        Run.open(made.runs, run.id).head()
    (run.folder / STATUS).write_text("{")
    with pytest.raises(VlpipeError, match=r"status.json' is damaged"):
        Run.open(made.runs, run.id)


def test_a_damaged_checkpoint_is_an_error(world: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world()
    folder = interrupted(made, monkeypatch, 4, **FAST)
    path = folder / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(VlpipeError, match=r"damaged.*delete"):
        made.trained("tpc", **FAST)


def test_two_processes_do_not_train_one_run(world: Maker) -> None:
    made = world()
    folder = made.runs / made.plan("tpc", **FAST).run_id()
    folder.mkdir(parents=True)
    with (folder / ".lock").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(VlpipeError, match="another process"):
            made.trained("tpc", **FAST)
    assert made.trained("tpc", **FAST).action == "trained"  # a lock that nobody holds is no obstacle


def test_unknown_runs_name_the_nearest(world: Maker) -> None:
    made = world()
    run = made.trained("identity").run
    with pytest.raises(UnknownNameError, match=f"did you mean '{run.id}'"):
        Run.open(made.runs, run.id[:-1])
    assert [found.id for found in Run.list(made.runs)] == [run.id]
    assert Run.list(made.root / "nothing") == []


def test_no_images_to_train_on_is_an_error(world: Maker) -> None:
    made = world(splits=("test", None))
    with pytest.raises(VlpipeError, match=r"20 in '\(none\)', 20 in 'test'.*--split-rule"):
        made.trained("tpc")
    assert made.trained("tpc", rule="random:0.5/0.25/0.25@0", **FAST).action == "trained"
    assert made.trained("identity").action == "trained"  # learns nothing, needs nothing


def test_no_image_comes_twice_in_an_epoch(world: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world()
    seen: list[list[str]] = []
    monkeypatch.setattr(Tpc, "update", lambda self, batch: seen.append(list(batch.ids)) or {"loss": 0.0})
    made.trained("tpc", **FAST)
    assert [len(ids) for ids in seen] == [8, 8, 4] * 3
    epochs = [[i for ids in seen[k : k + 3] for i in ids] for k in (0, 3, 6)]
    assert all(len(set(epoch)) == 20 for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert [part.tolist() for part in batches(np.arange(5), 2)] == [[0, 1], [2, 3], [4]]


def test_training_leaves_torchs_own_random_numbers_alone(world: Maker) -> None:
    made = world()
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    made.trained("tpc", **FAST)
    assert torch.equal(torch.rand(1), expected)
