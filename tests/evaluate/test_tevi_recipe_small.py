"""A recipe of TEVI run whole and small: six published layouts in miniature, and features that come in as files."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vlpipe import pipeline
from vlpipe.evaluate.recipes.checking import planned
from vlpipe.evaluate.recipes.filling import toml
from vlpipe.evaluate.recipes.recipe import load
from vlpipe.manifests.manifest import Manifest

PHOTOS, WIDTH = 12, 8
SETS = ("cc12m", "docci", "iiw", "coco", "flickr30k", "rococo")
JPEG = io.BytesIO()
Image.new("RGB", (4, 4)).save(JPEG, format="jpeg")


def photos(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(JPEG.getvalue())


def keep(path: Path, found: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found), encoding="utf-8")


def lines(path: Path, found: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, found)), encoding="utf-8")


def shard(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for n in range(PHOTOS):
            for name, content in ((f"{n}.jpg", JPEG.getvalue()), (f"{n}.txt", f"alt {n}".encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def long(n: int) -> str:
    return f"Photo {n}. It is a photo of {n}."


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The sets as they are published."""
    root, names = tmp_path / "data", [f"{n}.jpg" for n in range(PHOTOS)]
    shard(root / "cc12m" / "00000.tar")
    described = [
        {"example_id": f"{n}", "split": "test", "image_file": f"{n}.jpg", "description": long(n)}
        for n in range(PHOTOS)
    ]
    lines(root / "docci" / "docci_descriptions.jsonlines", described)
    photos(root / "docci" / "images", names)
    for n, part in enumerate(("IIW-400", "DOCCI_Test", "DCI_Test")):
        own = [{"image/key": f"{k}", "IIW": long(k)} for k in range(n * 4, n * 4 + 4)]
        lines(root / "iiw" / "datasets" / part / "data.jsonl", own)
    photos(root / "iiw" / "images", names)
    images = [{"id": n, "file_name": name, "width": 4, "height": 4} for n, name in enumerate(names)]
    told = [{"id": 10 * n + k, "image_id": n, "caption": f"{n} {k}"} for n in range(PHOTOS) for k in range(2)]
    keep(
        root / "coco" / "annotations" / "captions_val2017.json",
        {"images": images, "annotations": told},
    )
    photos(root / "coco" / "val2017", names)
    photos(root / "coco" / "val2014", names)
    split: list[dict[str, Any]] = [
        {"filename": name, "split": "val", "sentences": [{"raw": f"{name} {k}", "sentid": k} for k in range(2)]}
        for name in names
    ]
    keep(root / "flickr30k" / "dataset_flickr30k.json", {"images": split})
    photos(root / "flickr30k" / "flickr30k-images", names)
    for kind in ("same_concept", "diff_concept", "rand_voca", "danger"):
        captions = [[f"{n} {k}" for k in range(5)] + [f"{kind} {n} {k}" for k in range(5)] for n in range(PHOTOS)]
        altered = [{"image": f"val2014/{n}.jpg", "caption": captions[n]} for n in range(PHOTOS)]
        keep(root / "rococo" / f"{kind}.json", altered)
    return root


def features(folder: Path, manifest: Path, name: str) -> None:
    """Rows and ids of both sides as files."""
    rng = np.random.default_rng(0)
    for side in ("image", "text"):
        ids = Manifest.open(manifest).table(side, [f"{side}_id"])[f"{side}_id"].to_pylist()
        np.save(folder / f"{name}.{side}.npy", rng.normal(size=(len(ids), WIDTH)).astype(np.float32))
        (folder / f"{name}.{side}.txt").write_text("\n".join(ids), encoding="utf-8")


def test_rows_of_shared_and_aligned_clip(data: Path, tmp_path: Path) -> None:
    folder, given = tmp_path / "out", tmp_path / "features"
    (given / "alignclip").mkdir(parents=True)
    where = {name: str(data / name) for name in SETS}
    settings: dict[str, Any] = where | {
        "val2014": str(data / "coco"), "folder": str(folder), "features": str(given), "seed": [0, 1], "k": 3,
        "sae_epochs": 1, "mask_epochs": 1, "mask_batch": 4,
        "model": [{"name": "AlignCLIP ViT-B/16", "key": "alignclip"}],
        "data": [{"name": "DOCCI", "set": "docci", "split": "test"}],
    }  # fmt: skip
    recipe = load("tevi_alignclip", settings)
    for step in planned(recipe):
        if step[0][:2] == ["manifest", "build"]:
            assert pipeline.run(step[0]) == 0
    for name in SETS:
        features(given / "alignclip", folder / name, name)
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={toml(value)}")]
    assert pipeline.run(["recipe", "run", "tevi_alignclip", *sets]) == 0
    found = json.loads((folder / "tevi_alignclip.json").read_text(encoding="utf-8"))["numbers"]
    by_title = {(one["table"], *one["row"], one["column"]): one for one in found}
    one = by_title["Tables 1 and 2, +TEVI", "AlignCLIP ViT-B/16", "DOCCI", "I→T R@1"]
    assert (one["paper"], one["ours"]["n"]) == (23.18, 2)
    assert by_title["Table B3, unedited", "AlignCLIP ViT-B/16", "Danger drop"]["paper"] == 9.42
    assert all(np.isfinite(one["ours"]["mean"]) for one in found)
    assert len(Manifest.open(folder / "docci").table("text")) == 2 * PHOTOS  # sentences
    assert len(Manifest.open(folder / "iiw").table("image")) == PHOTOS
    assert list((folder / "figures").glob("pair_cosines-*.png"))
