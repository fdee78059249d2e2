"""Features made elsewhere, all the way: imported, verified, trained on, evaluated, collected as garbage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vlpipe import pipeline
from vlpipe.extract.importing import import_rows
from vlpipe.manifests.build import build_from_tables
from vlpipe.manifests.manifest import Manifest

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def vlpipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`vlpipe(*arguments)` gives exit code, stdout and stderr; it runs in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = pipeline.run(list(arguments))
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def from_table(folder: str, records: list[dict[str, str]]) -> Manifest:
    table = Path(f"{folder}.jsonl")
    table.write_text("".join(json.dumps(record) + "\n" for record in records))
    manifest, _ = build_from_tables(table, table, Path(folder), renames={})
    return manifest


def recalls(vlpipe: Command, *arguments: str) -> tuple[float, float]:
    """R@1, image to text and text to image."""
    code, out, err = vlpipe("eval", "--all", "--task", "retrieval", "--split", "test", "--json", *arguments)
    assert code == 0, err
    metrics = json.loads(out)["evaluations"][0]["metrics"]
    return tuple(metrics[name]["value"] for name in ("i2t_recall@1", "t2i_recall@1"))


def test_clip_embeddings_of_coco(shared: Path, vlpipe: Command) -> None:
    folder = shared / "data" / "clip_coco500"
    records = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
    from_table(
        "coco",
        [
            {"image_id": str(r["image_id"]), "path": r["file_name"], "text": r["caption"], "split": "test"}
            for r in records
        ],
    )
    Path("images.json").write_text(json.dumps([r["image_id"] for r in records]))
    Path("texts.txt").write_text("".join(f"{r['image_id']}#0\n" for r in records))
    for side, index, ids in (("image", "0", "images.json"), ("text", "1", "texts.txt")):
        code, out, err = vlpipe(
            "cache", "import", str(folder / "clip_vit_b16_image_text.npy"), "--index", index, "--ids", ids,
            "--manifest", "coco", "--side", side, "--as", "clip-b16", "--source", "CLIP ViT-B/16",
            "--dtype", "float32",
        )  # fmt: skip
        assert (code, err) == (0, "")
        assert "imported 500 rows" in out
    code, out, err = vlpipe("train-head", "identity", "--manifest", "coco", "--encoder", "clip-b16")
    assert code == 0, err
    assert recalls(vlpipe) == pytest.approx((0.552, 0.506), abs=1e-9)
    code, out, err = vlpipe("cache", "verify", "--manifest", "coco")
    assert (code, out.count(": ok, 500 rows")) == (0, 2), err
    (store,) = Path("cache").glob("*/clip-b16.text.zarr")
    code, out, err = vlpipe("cache", "export", str(store), "--out", "back.npz")
    assert code == 0, err
    with np.load("back.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["features"], np.load(folder / "clip_vit_b16_image_text.npy")[1])


def pairs(folder: str, seed: int) -> tuple[Manifest, np.ndarray]:
    """A manifest of twelve images with a text each, and unit rows for both."""
    records = [
        {"image_id": f"{folder}{n}", "path": f"{n}.png", "text": f"text {n}", "split": "test"} for n in range(12)
    ]
    rows = np.random.default_rng(seed).standard_normal((12, 4)).astype(np.float32)
    return from_table(folder, records), rows / np.linalg.norm(rows, axis=1, keepdims=True)


def keep(manifest: Manifest, rows: np.ndarray, name: str = "mine", source: str = "") -> None:
    for side in ("image", "text"):
        ids = manifest.table(side, [f"{side}_id"]).column(0)  # type: ignore[arg-type]
        import_rows(rows, ids, manifest, side, name, source=source)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["model 1", ""])
def test_a_run_is_evaluated_on_another_manifest_of_the_same_source(vlpipe: Command, source: str) -> None:
    """Without one nothing says that both were made alike."""
    keep(*pairs("a", 1), source=source)
    keep(*pairs("b", 2), source=source)
    code, _, err = vlpipe("train-head", "identity", "--manifest", "a", "--encoder", "mine")
    assert code == 0, err
    if source:
        assert recalls(vlpipe, "--manifest", "b") == (1, 1)
    else:
        code, _, err = vlpipe("eval", "--all", "--task", "retrieval", "--split", "test", "--manifest", "b")
        assert (code, "rows: cached" in err) == (4, True)


def stores() -> set[str]:
    return {path.name for path in Path("cache").glob("*/*.zarr")}


def test_gc_keeps_what_manifests_and_runs_refer_to(vlpipe: Command) -> None:
    old, rows = pairs("old", 1)
    keep(old, rows, "seen")
    keep(old, rows, "unseen")
    keep(pairs("new", 2)[0], rows, "fresh")
    everything = stores()
    code, _, err = vlpipe("train-head", "identity", "--manifest", "old", "--encoder", "seen#features")
    assert code == 0, err
    (run,) = (path.parent for path in Path("runs").glob("*/config.toml"))
    (run / "status.json").unlink()  # half a run refers to its features, too

    assert vlpipe("cache", "gc")[:2] == (0, "0 deleted, 0 B\n")
    assert vlpipe("cache", "gc", "--manifest", "old", "--manifest", "new")[:2] == (0, "0 deleted, 0 B\n")
    code, out, err = vlpipe("cache", "gc", "--manifest", "new", "--dry-run")
    assert (code, err, stores()) == (0, "", everything)
    assert out.count("unseen.image.zarr: no manifest or run that was named refers to it\n") == 1
    assert out.splitlines()[-1].startswith("2 would be deleted, ")
    code, out, _ = vlpipe("cache", "gc", "--manifest", "new", "--json")
    record = json.loads(out)
    assert (code, record["dry_run"], len(record["deleted"]), record["kept"]) == (0, False, 2, [])
    assert record["bytes"] == sum(item["bytes"] for item in record["deleted"]) > 0
    assert stores() == {f"{name}.{side}.zarr" for name in ("seen", "fresh") for side in ("image", "text")}

    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text("nonsense = 1")
    code, out, err = vlpipe("cache", "gc", "--manifest", "new")
    assert (code, out) == (1, "")
    assert "is damaged" in err
    assert "nothing was deleted" in err
    (run / "config.toml").write_text(config)

    shutil.move("runs", "elsewhere")
    assert vlpipe("cache", "gc", "--manifest", "new", "--runs", "elsewhere")[:2] == (0, "0 deleted, 0 B\n")
    assert vlpipe("cache", "gc", "--manifest", "new", "--runs", "runs")[0] == 2  # a wrong name is no empty folder
    code, out, err = vlpipe("cache", "gc", "--manifest", "new")  # the runs are not where gc looks: nothing goes
    assert (code, out) == (2, "")
    assert "--no-runs" in err
    assert vlpipe("cache", "gc", "--manifest", "nowhere", "--no-runs")[0] == 1
    assert vlpipe("cache", "gc", "--cache", "nowhere")[0] == 1
    assert vlpipe("cache", "gc", "--manifest", "new", "--no-runs")[1].startswith("    ")
    assert stores() == {"fresh.image.zarr", "fresh.text.zarr"}
