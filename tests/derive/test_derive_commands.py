"""`vlpipe manifest views` and `negatives` from the outside; and manifests with rows added."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from vlpipe.derive import language
from vlpipe.derive.growing import grow, rows
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.writer import write_manifest
from vlpipe.pipeline import manifest as command

TEXTS = ["A small brown dog runs through the wet grass .", "A man in front of two red buses ."]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_manifest(
        tmp_path / "m", name="pets", source="here", licence="CC0", image_root=tmp_path / "pictures",
        images=[{"image_id": "i", "path": "i.png", "split": "val", "attributes": {"b": "2", "a": "1"}}],
        texts=[
            {"text_id": f"t{n}", "text": text, "image_id": "i", "role": "caption", "split": "val"}
            for n, text in enumerate(TEXTS)
        ]
        + [{"text_id": "p", "text": "a photo of a dog", "role": "prompt", "attributes": {"label": "dog"}}],
        regions=[
            {"region_id": "r", "text_id": "t0", "image_id": "i", "boxes": [[0.0, 1.0, 2.5, 3.0]]},
            {"region_id": "s", "image_id": "i", "mask": {"height": 1, "width": 3, "counts": [1, 2]}},
        ],
    )  # fmt: skip
    return tmp_path / "m"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_views_are_added_to_a_copy(folder: Path, tmp_path: Path) -> None:
    result = run(
        "views", folder, "--out", tmp_path / "v", "--view", "core", "--view", "deletion", "--set", "shares=[0.5]"
    )
    assert result.exit_code == 0, result.output
    old, new = Manifest.open(folder), Manifest.open(tmp_path / "v")
    assert result.stdout == (
        f"pets-views: 8 views of 2 captions, 11 texts in all, digest {new.digest[:12]}, in {tmp_path / 'v'}\n"
    )
    assert "core: made" in result.stderr
    assert "note: no cosine" in result.stderr
    assert list(rows(new, "text"))[:3] == list(rows(old, "text"))
    for kind in ("image", "region"):
        assert list(rows(new, kind)) == list(rows(old, kind))
    assert (new.image_root, new.description.licence) == (old.image_root.resolve(), "CC0")
    assert new.description.settings["from"] == old.digest
    assert new.description.settings["views"]["shares"] == [0.5]
    assert new.description.settings["tagger"].startswith("textblob ")
    new.verify()


def test_the_same_command_makes_the_same_manifest(folder: Path, tmp_path: Path) -> None:
    first = json.loads(run("negatives", folder, "--out", tmp_path / "n", "--per-caption", 2, "--json").stdout)
    again = json.loads(run("negatives", folder, "--out", tmp_path / "n", "--per-caption", 2, "--json").stdout)
    assert first == again
    assert first["added"] == len(Manifest.open(tmp_path / "n").table("text")) - 3
    assert first["told"]["captions"] == 2
    other = run("negatives", folder, "--out", tmp_path / "n", "--set", "rules=['replace_rel']").exception
    assert "holds another manifest" in str(other)


def test_a_config_file_and_options_over_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('views = ["deletion"]\nshares = [1.0]\ndelete = ["counts"]\n')
    run("views", folder, "--out", tmp_path / "a", "--config", tmp_path / "c.toml")
    assert [row["text"] for row in rows(Manifest.open(tmp_path / "a"), "text")][3:] == [
        TEXTS[0], "A man in front of red buses ."
    ]  # fmt: skip
    run("views", folder, "--out", tmp_path / "b", "--config", tmp_path / "c.toml", "--view", "core")
    assert {row["role"] for row in rows(Manifest.open(tmp_path / "b"), "text")} == {
        "caption",
        "prompt",
        "view:core",
    }


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["views", "M", "--out", "M"], UsageError, "is the manifest that is read"),
        (["views", "nowhere", "--out", "o"], VlpipeError, "does not exist"),
        (["views", "M", "--out", "o", "--view", "paraphrase"], UsageError, "needs --model FOLDER"),
        (
            ["views", "M", "--out", "o", "--view", "paraphrase", "--model", "M"],
            VlpipeError,
            r"has no config\.json",
        ),
        (["views", "M", "--out", "o", "--encoder", "bundled:mad-clap"], UsageError, "mad-clip"),
        (["negatives", "M", "--out", "o", "--set", "rules=['add_at']"], UsageError, "rules.0"),
        (["negatives", "M", "--out", "o", "--set", "rules=['swap_att']"], VlpipeError, "gives no negatives"),
    ],
)
def test_errors_are_of_a_kind_and_write_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], kind: Any, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*(str(folder) if argument == "M" else argument for argument in arguments))
    assert result.exception is not None
    assert isinstance(result.exception, kind) or "mad-clip" in str(result.exception)
    with pytest.raises(type(result.exception), match=words):
        raise result.exception
    assert not (tmp_path / "o").exists()


def test_a_model_is_asked_once_over_two_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Fake:
        identity = "fake"

        def __init__(self, *_: object) -> None: ...

        def complete(self, prompts: Sequence[str], seed: int | None, max_tokens: int) -> list[str]:
            asked.extend(prompts)
            return ["a red thing made of other words"] * len(prompts)

    class Near:
        identity = "near"

        def __init__(self, *_: object) -> None: ...

        def cosines(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
            return [1.0] * len(pairs)

    monkeypatch.setattr(language, "LocalModel", Fake)
    monkeypatch.setattr("vlpipe.derive.filters.Nearness", Near)
    options = ["--view", "paraphrase", "--model", folder, "--encoder", "x", "--cache", tmp_path / "cache"]
    for out in ("a", "b"):
        assert run("views", folder, "--out", tmp_path / out, *options).exit_code == 0
    assert len(asked) == 2
    made = Manifest.open(tmp_path / "b")
    assert made.digest == Manifest.open(tmp_path / "a").digest
    assert (made.description.settings["model"], made.description.settings["encoder"]) == ("fake", "near")
    assert (tmp_path / "cache" / "derived.sqlite").is_file()


def test_growing_twice_keeps_the_first_rows(folder: Path, tmp_path: Path) -> None:
    run("views", folder, "--out", tmp_path / "v")
    run("negatives", tmp_path / "v", "--out", tmp_path / "n")
    found = list(rows(Manifest.open(tmp_path / "n"), "text"))
    assert {row["role"] for row in found} == {"caption", "prompt", "view:core", "hard_negative"}
    assert all(row["source_text_id"] in ("t0", "t1") for row in found if row["role"] == "hard_negative")
    twice = run("views", tmp_path / "v", "--out", tmp_path / "w").exception
    assert "has views of this kind already (text_id 't0@core')" in str(twice)


def test_rows_of_another_role_alone_are_no_ground(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(VlpipeError, match="gives no views: they are made of texts of role caption"):
        grow(
            Manifest.open(folder),
            tmp_path / "g",
            iter(()),
            name=None,
            suffix="views",
            settings={},
            overwrite=False,
        )


@pytest.mark.parametrize("what", ["views", "negatives"])
def test_the_same_kind_twice_is_refused_before_the_work(folder: Path, tmp_path: Path, what: str) -> None:
    assert run(what, folder, "--out", tmp_path / "one").exit_code == 0
    result = run(what, tmp_path / "one", "--out", tmp_path / "two")
    assert result.exit_code == 1
    assert f"has {what} of this kind already (text_id 't0@" in str(result.exception)
    assert not (tmp_path / "two").exists()
    other = {"views": "negatives", "negatives": "views"}[what]
    assert run(other, tmp_path / "one", "--out", tmp_path / "both").exit_code == 0
