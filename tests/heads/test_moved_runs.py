"""Runs that are opened from another folder, or whose manifest and cache lie elsewhere now."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from vlpipe.foundation.errors import StaleError, VlpipeError
from vlpipe.heads.commands import train_head
from vlpipe.heads.runs import Run, open_joined
from vlpipe.manifests.writer import write_manifest

World = Any
Maker = Callable[..., World]
RULE = "random:0.5/0.25/0.25@3"


def test_the_own_manifest_named_by_any_path_keeps_the_runs_split_rule(world: Maker, tmp_path: Path) -> None:
    made = world()
    run = made.trained("identity", rule=RULE).run
    expected = open_joined(run).images("test").tolist()
    assert expected != list(range(3, 40, 4))  # the column's
    copy = shutil.copytree(made.manifest.folder, tmp_path / "copy")
    for named in (made.manifest.folder, copy):
        assert open_joined(run, named).images("test").tolist() == expected
    made.store("enc:a", "image", made.arrays["enc:a", "image"], content=1, again=True)
    for named in (None, made.manifest.folder, copy):
        with pytest.raises(StaleError, match="encoded anew"):
            open_joined(run, named)


def test_another_manifest_has_its_column_and_its_own_pictures(world: Maker, tmp_path: Path) -> None:
    made = world()
    run = made.trained("identity", rule=RULE).run
    images = made.manifest.table("image", ["image_id", "path", "split"]).to_pylist()
    texts = made.manifest.table("text", ["text_id", "text", "image_id", "role"]).to_pylist()
    other = write_manifest(
        tmp_path / "other",
        name="other",
        source="made",
        licence="none",
        image_root=tmp_path,
        images=images[:20],
        texts=texts[:60],
    )
    rows = dict(made.arrays)
    made.manifest = other
    made.store("enc:a", "image", rows["enc:a", "image"][:20], content=7)
    made.store("enc:a", "text", rows["enc:a", "text"][:60], content=7)
    assert open_joined(run, other.folder).images("test").tolist() == list(range(3, 20, 4))


def test_a_run_is_opened_from_another_working_folder(
    world: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world()
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(train_head, ["identity", "--manifest", "manifest", "--encoder", "enc:a"])
    assert result.exit_code == 0, result.exception
    elsewhere = tmp_path / "else"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (run,) = Run.list(Path(os.pardir) / "runs")
    assert (run.manifest, run.cache) == (made.manifest.folder, made.cache)
    assert len(open_joined(run).images("test")) == 10


@pytest.mark.parametrize("what", ["manifest", "cache"])
def test_a_folder_that_is_gone_is_named_with_its_option(world: Maker, tmp_path: Path, what: str) -> None:
    made = world()
    run = made.trained("identity").run
    moved, was = tmp_path / "moved", tmp_path / what
    was.rename(moved)
    with pytest.raises(VlpipeError, match=f"run '{run.id}' .* {what} '{was}', which is gone.* --{what} DIR"):
        open_joined(run)
    assert len(open_joined(run, **{what: moved}).images("test")) == 10
