"""Pictures that are replaced and encoded anew: no stage uses what was made of the old ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vlpipe import pipeline
from vlpipe.manifests.writer import write_manifest

ENCODER = "toys.toy:Toy:m"
TOYS = Path(__file__).parents[1] / "extract"


def paint(folder: Path, seed: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(6):
        colours = np.random.default_rng([seed, number]).integers(0, 256, (4, 4, 3), np.uint8)
        Image.fromarray(colours).save(folder / f"{number}.png")


def manifest(folder: Path, photos: Path) -> None:
    write_manifest(
        folder,
        name="six",
        source="made",
        licence="none",
        image_root=photos,
        images=[
            {"image_id": f"i{n}", "path": f"{n}.png", "split": "test" if n % 2 else "train"} for n in range(6)
        ],
        texts=[
            {"text_id": f"t{n}", "text": "a" * n + "bc", "image_id": f"i{n}", "role": "caption"} for n in range(6)
        ],
    )


@pytest.fixture
def vlpipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`vlpipe(*arguments)` gives exit code, stdout and stderr."""
    monkeypatch.syspath_prepend(str(TOYS))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = pipeline.run(list(arguments))
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def trained(vlpipe: Any) -> tuple[str, str]:
    """The run's id, and what became of it."""
    code, out, err = vlpipe("train-head", "identity", "--manifest", "m", "--encoder", ENCODER, "--json")
    assert code == 0, err
    found = json.loads(out)
    return found["run"], found["action"]


def extracted(vlpipe: Any) -> None:
    code, _, err = vlpipe("extract", "--manifest", "m", "--encoder", ENCODER)
    assert code == 0, err


def evaluated(vlpipe: Any, run: str) -> None:
    code, _, err = vlpipe("eval", "--run", run, "--set", "ks=[1]")
    assert code == 0, err


def test_replaced_pictures_make_a_new_run_and_the_old_one_is_refused(vlpipe: Any, tmp_path: Path) -> None:
    paint(tmp_path / "photos", 0)
    manifest(tmp_path / "m", tmp_path / "photos")
    extracted(vlpipe)
    old, _ = trained(vlpipe)
    assert trained(vlpipe) == (old, "skipped")
    evaluated(vlpipe, old)
    extracted(vlpipe)  # nothing was replaced
    assert trained(vlpipe) == (old, "skipped")
    paint(tmp_path / "photos", 1)
    extracted(vlpipe)
    new, action = trained(vlpipe)
    assert action == "trained"
    assert new != old
    code, out, err = vlpipe("eval", "--run", old, "--set", "ks=[1]")
    assert (code, out) == (4, "")
    assert "pictures of" in err
    assert "encoded anew" in err
    assert "train-head" in err
    evaluated(vlpipe, new)
