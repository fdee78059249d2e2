"""`vlpipe cache ls` and `show`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from vlpipe.cache_store import commands
from vlpipe.cache_store.errors import CorruptCacheError, NotCachedError
from vlpipe.cache_store.layout import ArraySpec
from vlpipe.cache_store.stores import list_stores
from vlpipe.foundation.errors import UsageError


def run(name: str, *arguments: str) -> str:
    result = CliRunner().invoke(
        getattr(commands, name), list(arguments), catch_exceptions=False, env={"COLUMNS": "200"}
    )
    assert result.exit_code == 0
    return result.output


def test_list_stores(sample: Any, full: Path) -> None:
    (info,) = list_stores(full.parent.parent)
    assert (info.path, info.problem, info.manifest, info.encoder, info.side) == (
        full,
        "",
        "m" * 64,
        "hf:tiny",
        "image",
    )
    assert (info.rows, info.ok, info.failed, info.cut, info.absent) == (37, 35, 1, 1, 0)
    assert info.bytes == sum(p.stat().st_size for p in full.rglob("*") if p.is_file())
    assert {name: output.committed_rows for name, output in info.outputs.items()} == {
        "norm": 37,
        "pooled": 37,
        "tokens": 37,
    }


def test_counts_are_of_rows_that_all_outputs_have(sample: Any, store: Path) -> None:
    sample.fill(sample.open_writer(store, {"pooled": ArraySpec((5,))}), ["pooled"])
    sample.fill(sample.open_writer(store, {"norm": ArraySpec(())}), ["norm"], blocks=[4])
    (info,) = list_stores(store.parent.parent)
    assert (info.ok, info.absent) == (5, 32)
    assert [info.outputs[name].committed_rows for name in ("pooled", "norm")] == [37, 5]


def test_a_broken_store_is_listed_with_its_problem(sample: Any, full: Path) -> None:
    broken = full.with_name("broken.image.zarr")
    sample.open_writer(broken)
    (broken / "zarr.json").write_text("{")
    good = {info.path.name: info.problem for info in list_stores(full.parent.parent)}
    assert good["tiny.image.zarr"] == ""
    assert "damaged" in good["broken.image.zarr"]
    text = run("ls", "--cache", str(full.parent.parent))
    assert "tiny" in text
    assert "damaged" in text


def test_ls(full: Path) -> None:
    text = run("ls", "--cache", str(full.parent.parent))
    row = next(line for line in text.splitlines() if "tiny" in line).split()
    assert row[:10] == ["tiny", "image", "norm,", "pooled,", "tokens", "mmmmmmmmmmmm", "37", "35", "1", "1"]
    (record,) = json.loads(run("ls", "--json", "--cache", str(full.parent.parent)))
    assert (record["rows"], record["ok"], record["path"]) == (37, 35, str(full))


def test_show(full: Path) -> None:
    assert "  weights: w1" in run("show", str(full)).splitlines()
    record = json.loads(run("show", str(full), "--json"))
    assert record["outputs"]["tokens"]["shape"] == [3, 2]
    assert record["outputs"]["pooled"]["fingerprint"] == {"precision": "float32", "weights": "w1"}


def test_no_cache_folder(tmp_path: Path) -> None:
    with pytest.raises(NotCachedError, match="vlpipe extract"):
        run("ls", "--cache", str(tmp_path / "none"))


def test_ls_tells_which_output_lacks_rows(sample: Any, store: Path) -> None:
    sample.fill(sample.open_writer(store, {"pooled": ArraySpec((5,))}), ["pooled"])
    sample.fill(sample.open_writer(store, {"norm": ArraySpec(())}), ["norm"], blocks=[4])
    assert "norm (5 rows), pooled " in run("ls", "--cache", str(store.parent.parent))


@pytest.mark.parametrize("name", ["show", "export"])
def test_another_folder_is_told_from_a_damaged_store(full: Path, tmp_path: Path, name: str) -> None:
    given = [str(full.parent), *(["--out", str(tmp_path / "x.npz")] if name == "export" else [])]
    with pytest.raises(UsageError, match="is no store"):
        CliRunner().invoke(getattr(commands, name), given, catch_exceptions=False)
    (full / "zarr.json").unlink()
    with pytest.raises(CorruptCacheError, match="missing, damaged"):
        CliRunner().invoke(getattr(commands, name), [str(full), *given[1:]], catch_exceptions=False)
