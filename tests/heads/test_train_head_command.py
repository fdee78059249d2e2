from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.heads.commands import train_head
from vlpipe.heads.contracts import Batch
from vlpipe.heads.folder import WEIGHTS
from vlpipe.heads.kinds.tpc import Tpc
from vlpipe.heads.opening import Opener
from vlpipe.heads.runs import Run
from vlpipe.heads.sweep import Request, members, parse_seeds, parse_sweep, run_sweep

World = Any
Maker = Callable[..., World]
FAST = ["--set", "epochs=2", "--set", "batch_size=8"]


def command(made: World, *arguments: str) -> Result:
    paths = ["--manifest", str(made.manifest.folder), "--cache", str(made.cache), "--runs", str(made.runs)]
    return CliRunner().invoke(train_head, [*arguments, *paths])


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exception is None, result.exception
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_line_a_run_and_skipped_the_second_time(world: Maker) -> None:
    made = world()
    first = command(made, "tpc", "--encoder", "enc:a", *FAST)
    assert first.exit_code == 0
    assert "  trained  " in first.stdout
    assert "agree=" in first.stdout
    again = command(made, "tpc", "--encoder", "enc:a#pooled", *FAST)
    assert "  skipped  " in again.stdout
    assert again.stdout.split()[0] == first.stdout.split()[0]


def test_json_says_all(world: Maker) -> None:
    made = world()
    (found,) = lines(command(made, "ridge", "--encoder", "enc:a", "--json"))
    assert found["action"] == "trained"
    assert found["run"].startswith("ridge-")
    assert Path(found["folder"]).is_dir()
    assert found["scalars"]["strength"] > 0
    assert found["rows"]["images_left_out"] == 0


def test_a_sweep_is_every_combination(world: Maker) -> None:
    made = world()
    options = ["--sweep", "lr=1e-3,1e-2", "--seeds", "5,42", "--encoder", "enc:a", *FAST]
    found = lines(command(made, "tpc", *options, "--json"))
    assert [line["varied"] for line in found] == [
        {"lr": lr, "seed": seed} for lr in (1e-3, 1e-2) for seed in (5, 42)
    ]
    assert len({line["run"] for line in found}) == 4
    shown = command(made, "tpc", *options)
    assert shown.stdout.count("skipped") == 4


def test_config_below_set_below_sweep(world: Maker, tmp_path: Path) -> None:
    made = world()
    file = tmp_path / "head.toml"
    file.write_text("epochs = 2\nbatch_size = 4\nlr = 0.5\n[sweep]\ngamma = [0.5, 2.0]\n")
    found = lines(command(made, "tpc", "--encoder", "enc:a", "--config", str(file), "--set", "lr=0.25", "--json"))
    assert [line["varied"] for line in found] == [{"gamma": 0.5}, {"gamma": 2.0}]
    configs = [(Path(line["folder"]) / "config.toml").read_text() for line in found]
    assert all("lr = 0.25" in text and "batch_size = 4" in text for text in configs)


def test_set_drops_the_files_list_of_that_setting(world: Maker, tmp_path: Path) -> None:
    made = world()
    file = tmp_path / "head.toml"
    file.write_text("[sweep]\ngamma = [0.5, 2.0]\nlr = [0.1, 0.2]\n")
    found = lines(
        command(made, "tpc", "--encoder", "enc:a", "--config", str(file), "--set", "lr=0.25", *FAST, "--json")
    )
    assert [line["varied"] for line in found] == [{"gamma": 0.5}, {"gamma": 2.0}]
    assert all("lr = 0.25" in (Path(line["folder"]) / "config.toml").read_text() for line in found)


def test_a_tables_columns_are_named_once_and_no_run_comes_twice(world: Maker) -> None:
    made = world()
    shown = command(made, "tpc", "--encoder", "enc:a", "--sweep", "lr=1e-3,1e-2", "--seeds", "1,1", *FAST)
    assert shown.exit_code == 0
    assert shown.stdout.count("  trained  ") == 2
    (head,) = (line for line in shown.stdout.splitlines() if "agree" in line and "tpc-" not in line)
    assert head.split().count("lr") == 1
    shown = command(made, "ridge", "--encoder", "enc:a", "--sweep", "strength=1.0,10.0")
    (head,) = (line for line in shown.stdout.splitlines() if "strength" in line and "ridge-" not in line)
    assert head.split().count("strength") == 1
    assert " lr=" not in command(made, "tpc", "--encoder", "enc:a", *FAST).stdout


def test_help_says_what_folders_are_meant() -> None:
    told = " ".join(CliRunner().invoke(train_head, ["--help"]).stdout.split())
    assert "Folder of the features. [" in told
    assert "default: cache]" in told
    assert "Folder of runs. [" in told
    assert "default: runs]" in told


def test_a_member_of_a_sweep_equals_itself_alone_to_the_bit(world: Maker) -> None:
    made = world()
    found = lines(
        command(made, "tpc", "--encoder", "enc:a", "--sweep", "views=1,2,3", "--seeds", "0,1", *FAST, "--json")
    )
    swept = {line["run"]: (Path(line["folder"]) / WEIGHTS).read_bytes() for line in found}
    made.runs.rename(made.root / "swept")
    for line in found:
        sets = [f"--set={name}={value}" for name, value in line["varied"].items()]
        (alone,) = lines(command(made, "tpc", "--encoder", "enc:a", *sets, *FAST, "--json"))
        assert (Path(alone["folder"]) / WEIGHTS).read_bytes() == swept[alone["run"]]
    assert len(set(swept.values())) == 6


def test_one_failing_member_does_not_lose_the_others(world: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world()
    original = Tpc.update

    def update(self: Tpc, batch: Batch) -> dict[str, float]:
        if self.config.gamma == 2:
            raise RuntimeError("out of luck")
        return original(self, batch)

    monkeypatch.setattr(Tpc, "update", update)
    result = command(made, "tpc", "--encoder", "enc:a", "--sweep", "gamma=1.0,2.0,3.0", *FAST)
    assert isinstance(result.exception, VlpipeError)
    assert result.exception.exit_code == 1
    assert "1 of 3 runs failed" in str(result.exception)
    assert "RuntimeError: out of luck" in str(result.exception)
    assert result.stdout.count("  trained  ") == 2


def test_wrong_settings_stop_a_sweep_before_it_trains(world: Maker) -> None:
    made = world()
    opener = Opener(made.manifest.folder, made.cache, made.runs)
    request = Request("tpc", opener, made.runs, encoder="enc:a")
    with pytest.raises(UsageError, match="gamma"):
        list(run_sweep(request, {}, {"gamma": [1.0, "two"]}))
    assert not made.runs.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["tpx", "--encoder", "enc:a"], 2, "did you mean 'tpc'"),
        (["tpc"], 2, "'image' has no source"),
        (["tpc", "--encoder", "enc:a", "--set", "lrr=1"], 2, "did you mean 'lr'"),
        (["tpc", "--encoder", "enc:a", "--sweep", "lr"], 2, "key=value,value"),
        (["tpc", "--encoder", "enc:a", "--sweep", "lr="], 2, "key=value,value"),
        (["tpc", "--encoder", "enc:a", "--seeds", "a"], 2, "5,42,55"),
        (["tpc", "--encoder", "enc:a", "--seeds", ""], 2, "5,42,55"),
        (["tpc", "--encoder", "enc:a", "--set", "lr=5e-4", "--sweep", "lr=1e-3,1e-2"], 2, "'lr' is given more"),
        (["tpc", "--encoder", "enc:a", "--set", "seed=1", "--seeds", "1,2"], 2, "'seed' is given more"),
        (["tpc", "--encoder", "enc:a", "--sweep", "seed=1,2", "--seeds", "3"], 2, "'seed' is given more"),
        (["json:JSONDecoder", "--encoder", "enc:a"], 2, "lacks Config, roles, code, update, finish, .*Module"),
        (["torch.nn:Identity", "--encoder", "enc:a"], 2, "lacks Config, roles, code, update, finish;"),
        (["tpc", "--encoder", "enc:a", "--split-rule", "half"], 2, "random:0.7/0.15/0.15@0"),
        (["tpc", "--encoder", "enc:z"], 1, "vlpipe extract --manifest .* --encoder enc:z --side image --cache"),
    ],
)
def test_bad_input_is_one_clear_line(world: Maker, arguments: list[str], code: int, words: str) -> None:
    result = command(world(), *arguments)
    assert isinstance(result.exception, VlpipeError)
    assert result.exception.exit_code == code
    with pytest.raises(VlpipeError, match=words):
        raise result.exception


def test_a_source_for_one_side_and_an_encoder_for_the_other(world: Maker) -> None:
    made = world(image_width=9)
    (ridge,) = lines(command(made, "ridge", "--encoder", "enc:a", "--json"))
    (found,) = lines(
        command(made, "tpc", "--source", f"image=enc:a::{ridge['run']}", "--encoder", "enc:a", *FAST, "--json")
    )
    assert f'image = "enc:a#pooled::{ridge["run"]}"' in (Path(found["folder"]) / "config.toml").read_text()


def test_lists_are_taken_apart() -> None:
    assert parse_sweep("lr=1e-4,1e-3") == ("lr", [1e-4, 1e-3])
    assert parse_sweep('name="a","b"') == ("name", ["a", "b"])
    assert parse_seeds("5,42,55") == [5, 42, 55]
    assert list(members({})) == [{}]
    with pytest.raises(UsageError, match="expected a list"):
        list(members({"lr": 3}))


def test_a_head_from_outside_is_trained_and_opened_again(
    world: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = world()
    (tmp_path / "mylab_heads.py").write_text(
        "from vlpipe.heads.kinds.tpc import Tpc\n\n\nclass Mine(Tpc):\n    code = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = lines(command(made, "mylab_heads:Mine", "--encoder", "enc:a", *FAST, "--json"))
    assert found["run"].startswith("mine-")
    assert type(Run.open(made.runs, found["run"]).head()).__name__ == "Mine"
