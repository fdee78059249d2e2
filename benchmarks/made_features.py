"""A manifest and a cache of random features: for timing, not for results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vlpipe.cache_store.layout import ArraySpec, Side, Status, store_path
from vlpipe.cache_store.writer import StoreWriter
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.writer import write_manifest

ENCODER = "made:rows"
CAPTIONS = 5  # an image


def make(folder: Path, images: int, width: int, validation: int) -> Manifest:
    """`folder/manifest` and `folder/cache`: images with five captions, each with one hard negative; float16."""
    splits = ["train"] * images + ["val"] * validation
    manifest = write_manifest(
        folder / "manifest",
        name="made",
        source="made",
        licence="none",
        image_root=folder,
        images=[
            {"image_id": f"i{n}", "path": f"{n}.jpg", "split": split, "label": None}
            for n, split in enumerate(splits)
        ],
        texts=[text for n in range(len(splits)) for k in range(CAPTIONS) for text in _texts(n, k)],
    )
    rng = np.random.default_rng(0)
    for side in ("image", "text"):
        _store(folder / "cache", manifest, side, width, rng)
    return manifest


def _texts(image: int, caption: int) -> list[dict[str, Any]]:
    name = f"t{image}.{caption}"
    own = {"text_id": name, "text": f"caption {caption} of {image}", "image_id": f"i{image}", "role": "caption"}
    wrong = {"text_id": f"n{name}", "text": f"not {name}", "role": "hard_negative", "source_text_id": name}
    return [own, wrong]


def _store(cache: Path, manifest: Manifest, side: Side, width: int, rng: np.random.Generator) -> None:
    column = "image_id" if side == "image" else "text_id"
    writer = StoreWriter.open(
        store_path(cache, manifest.digest, ENCODER, side),
        manifest=manifest.digest,
        side=side,
        encoder=ENCODER,
        ids=manifest.table(side, [column])[column].to_pylist(),
        outputs={"pooled": ArraySpec((width,), "float16")},
        fingerprints={"pooled": {"weights": "made"}},
        constants={},
    )
    for block in writer.missing():
        rows = rng.standard_normal((len(writer.span(block)), width), dtype=np.float32).astype(np.float16)
        states = np.full(len(rows), Status.OK, np.uint8)
        with writer.claim(block):
            writer.write(block, {"pooled": rows}, states, rng.integers(1, 256, (len(rows), 16), np.uint8))
