"""What the tests of derived text share: real captions, and manifests of made-up ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.writer import write_manifest


@pytest.fixture(autouse=True, scope="session")
def tagger() -> None:
    """All of these tests tag captions."""
    pytest.importorskip("textblob", reason="the tagger is an extra")


@pytest.fixture(scope="session")
def flickr8k(shared: Path) -> list[list[str]]:
    """The five captions of each real image, in the file's order."""
    lines = (shared / "data" / "flickr8k" / "captions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["captions"] for line in lines]


@pytest.fixture(scope="session")
def real_captions(flickr8k: list[list[str]]) -> list[str]:
    """200 real captions, drawn with a seed."""
    every = [caption for captions in flickr8k for caption in captions]
    return [every[at] for at in np.random.default_rng(0).choice(len(every), 200, replace=False)]


@pytest.fixture
def manifest_of(tmp_path: Path) -> Callable[[Sequence[Sequence[str]]], Manifest]:
    """A manifest of images with these captions, ids `i0#0`, `i0#1`, ..."""

    def make(images: Sequence[Sequence[str]]) -> Manifest:
        texts = [
            {"text_id": f"i{n}#{k}", "text": text, "image_id": f"i{n}", "role": "caption", "split": "train"}
            for n, captions in enumerate(images)
            for k, text in enumerate(captions)
        ]
        return write_manifest(
            tmp_path / "manifest", name="made", source="", licence="none", image_root=tmp_path,
            images=[{"image_id": f"i{n}", "path": f"{n}.png", "split": "train"} for n in range(len(images))],
            texts=texts, overwrite=True,
        )  # fmt: skip

    return make
