from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vlpipe.cache_store.layout import ArraySpec, Side, Status, store_path
from vlpipe.cache_store.writer import StoreWriter
from vlpipe.heads.opening import Opener
from vlpipe.heads.sweep import Request, run_sweep
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.writer import write_manifest

torch.set_num_threads(1)
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Place:
    """A manifest, its cached features under `enc:a`, and a folder of runs."""

    root: Path
    manifest: Manifest
    x: Array
    y: Array

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    def store(
        self,
        side: Side,
        rows: Array,
        weights: str = "w0",
        failed: Sequence[int] = (),
        mark: int = 0,
        block_rows: int | None = None,
    ) -> None:
        """Write all rows of one side; another `mark` stands for other pictures or texts."""
        table = "image_id" if side == "image" else "text_id"
        ids = self.manifest.table(side, [table])[table].to_pylist()
        writer = StoreWriter.open(
            store_path(self.root / "cache", self.manifest.digest, "enc:a", side),
            manifest=self.manifest.digest,
            side=side,
            encoder="enc:a",
            ids=ids,
            outputs={"pooled": ArraySpec(rows.shape[1:], "float32")},
            fingerprints={"pooled": {"weights": weights}},
            constants={"logit_scale": 20.0},
            block_rows=block_rows,
        )
        status = np.array([Status.FAILED if n in failed else Status.OK for n in range(len(ids))], dtype=np.uint8)
        for block in writer.missing():
            span = slice(writer.span(block).start, writer.span(block).stop)
            numbers = mark + np.arange(span.start, span.stop)
            marks = numbers.astype(np.uint32)[:, None].view(np.uint8).repeat(4, axis=1)
            with writer.claim(block):
                writer.write(block, {"pooled": rows[span].astype(np.float32)}, status[span], marks)

    def again(self, x: Array, y: Array, **images: Any) -> None:
        """Another cache of the same manifest; `images` are options of the images' store."""
        shutil.rmtree(self.root / "cache")
        self.store("image", x, **images)
        self.store("text", y)

    def train(
        self, kind: str = "identity", rule: str = "column", sources: tuple[str, ...] = (), **settings: Any
    ) -> str:
        """A finished run's id."""
        opener = Opener(self.manifest.folder, self.root / "cache", self.runs)
        request = Request(kind, opener, self.runs, sources, "enc:a", rule)
        (member,) = run_sweep(request, settings, {})
        if member.outcome is None:
            raise AssertionError(member.error)
        return member.outcome.run.id


def image_rows(count: int) -> list[dict[str, Any]]:
    """Every second image is a test image, every fourth has no attributes."""
    rows = [{"image_id": f"i{n}", "path": f"{n}.jpg", "split": ("train", "test")[n % 2]} for n in range(count)]
    more = [{"label": f"l{n % 3}", "attributes": {"hue": f"h{n}"} if n % 4 else None} for n in range(count)]
    return [row | other for row, other in zip(rows, more, strict=True)]


def text_rows(owner: Sequence[int], alone: Sequence[str | None]) -> list[dict[str, Any]]:
    """Captions; the last texts belong to no image and have a split of their own."""
    captions = len(owner) - len(alone)
    rows: list[dict[str, Any]] = [
        {"text_id": f"t{n}", "text": f"text {n}", "role": "caption", "group_id": f"g{n % 5}"}
        for n in range(len(owner))
    ]
    for n, row in enumerate(rows):
        row["attributes"] = {"tone": f"a{n}"}
        row |= {"image_id": f"i{owner[n]}"} if n < captions else {"split": alone[n - captions]}
    return rows


Maker = Callable[..., Place]


@pytest.fixture
def place(tmp_path: Path) -> Maker:
    """`place(images=..., each=...)`: captions are noisy copies of their images; half of the images are test.

    With `equal`, all captions have one vector. The last `bare` images have no caption; `alone` are the splits of
    more texts, near the first images, that belong to none.
    """

    def make(
        images: int = 60,
        each: int = 3,
        noise: float = 0.8,
        name: str = "manifest",
        equal: bool = False,
        bare: int = 0,
        alone: Sequence[str | None] = (),
    ) -> Place:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(images, 8))
        owner = np.concatenate([np.repeat(np.arange(images - bare), each), np.arange(len(alone))])
        y = x[owner] + noise * rng.normal(size=(len(owner), 8))
        if equal:
            y[:] = y[0]
        manifest = write_manifest(
            tmp_path / name,
            name="tiny",
            source="made",
            licence="none",
            image_root=tmp_path,
            images=image_rows(images),
            texts=text_rows(owner.tolist(), alone),
        )
        made = Place(tmp_path, manifest, x, y)
        made.store("image", x)
        made.store("text", y)
        return made

    return make
