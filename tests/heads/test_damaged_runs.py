"""Files of a run that are damaged: trained again or refused in one line, never used and never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.folder import CONFIG, STATUS, WEIGHTS
from vlpipe.heads.kinds.ridge import Ridge
from vlpipe.heads.kinds.tpc import Tpc
from vlpipe.heads.runs import Run

World = Any
Maker = Callable[..., World]
FAST = {"epochs": 3, "batch_size": 8, "lr": 1e-2}
CHECKPOINT = "checkpoint.safetensors"


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def half(made: World, monkeypatch: pytest.MonkeyPatch, kind: type[Any] = Tpc, method: str = "update") -> Path:
    """A run that dies: tpc in its second epoch, or a head at its end."""
    original, calls = getattr(kind, method), iter(range(4 if method == "update" else 0))

    def dying(self: Any, *given: Any) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return original(self, *given)

    settings = FAST if kind is Tpc else {}
    with monkeypatch.context() as patch:
        patch.setattr(kind, method, dying)
        with pytest.raises(KeyboardInterrupt):
            made.trained(kind.__name__.lower(), **settings)
    folder: Path = next(made.runs.iterdir())
    return folder


@pytest.mark.parametrize("damaged", [WEIGHTS, CONFIG, STATUS])
@pytest.mark.parametrize("how", ["gone", "empty", "flipped"])
def test_a_finished_run_with_a_damaged_file_is_trained_again(world: Maker, damaged: str, how: str) -> None:
    made = world()
    run = made.trained("tpc", **FAST).run
    whole = (run.folder / WEIGHTS).read_bytes()
    path = run.folder / damaged
    if how == "gone":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    else:
        flip(path, -3 if damaged == WEIGHTS else 0)
    again = made.trained("tpc", **FAST)
    assert (again.action, again.run.id) == ("trained", run.id)
    assert (run.folder / WEIGHTS).read_bytes() == whole
    assert Run.open(made.runs, run.id).head()
    assert made.trained("tpc", **FAST).action == "skipped"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (CONFIG, ""),
        (CONFIG, 'kind = "tpc"'),
        (CONFIG, "kind = 3"),
        (STATUS, "[]"),
        (STATUS, "3"),
        (STATUS, '{"state": "finished", "scalars": []}'),
    ],
)
def test_a_damaged_run_is_one_error_of_that_run_only(world: Maker, file: str, content: str) -> None:
    made = world()
    run, other = (made.trained("identity", temperature=t).run for t in (0.1, 0.2))
    (other.folder / file).write_text(content)
    told: list[VlpipeError] = []
    assert [found.id for found in Run.list(made.runs, told.append)] == [run.id]
    assert len(told) == 1
    assert f"'{other.folder / file}' is damaged" in str(told[0])
    with pytest.raises(VlpipeError, match=r"is damaged.*train again"):
        Run.open(made.runs, other.id)


def test_a_flipped_bit_anywhere_in_a_checkpoint_never_changes_the_weights(
    world: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world()
    folder = half(made, monkeypatch)
    path, straight = folder / CHECKPOINT, None
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for place in [*range(0, 8), *range(8, header, 37), *range(header, len(whole), 23), len(whole) - 1]:
        path.write_bytes(whole)
        flip(path, place)
        with pytest.raises(VlpipeError, match=r"is damaged.*delete") as caught:
            made.trained("tpc", **FAST)
        assert "\n" not in str(caught.value)
    path.write_bytes(whole)
    resumed = made.trained("tpc", **FAST)
    assert resumed.action == "resumed"
    resumed.run.folder.rename(made.root / "first")
    straight = made.trained("tpc", **FAST).run.folder / WEIGHTS
    assert straight.read_bytes() == (made.root / "first" / WEIGHTS).read_bytes()


def test_a_garbage_line_in_the_log_of_half_a_run_is_dropped(world: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world()
    folder = half(made, monkeypatch)
    log = folder / "log.jsonl"
    log.write_bytes(b'garbage}\n{}\n[1]\n{"epoch": "one"}\n\xff\xfe}\n' + log.read_bytes() + b"{}}\n")
    outcome = made.trained("tpc", **FAST)
    assert outcome.action == "resumed"
    assert [json.loads(line)["epoch"] for line in log.read_text().splitlines()] == [1, 2, 3]


def test_results_do_not_depend_on_the_log(world: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the last epoch, and the log lost: the same scalars as in one go."""
    made = world()
    folder = half(made, monkeypatch, Tpc, "finish")
    (folder / "log.jsonl").write_text("garbage\n")
    resumed = made.trained("tpc", **FAST)
    resumed.run.folder.rename(made.root / "first")
    assert resumed.action == "resumed"
    assert resumed.run.scalars["agree"] > 0
    assert resumed.run.scalars == made.trained("tpc", **FAST).run.scalars


def test_a_flipped_bit_in_ridges_sums_is_refused(world: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world()
    flip(half(made, monkeypatch, Ridge, "finish") / CHECKPOINT, -40)
    with pytest.raises(VlpipeError, match="is damaged"):
        made.trained("ridge")
