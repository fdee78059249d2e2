from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vlpipe.cache_store.layout import ArraySpec, Side, Status, store_path
from vlpipe.cache_store.writer import StoreWriter
from vlpipe.foundation.config import resolve
from vlpipe.heads.contracts import SHELF, roles_of
from vlpipe.heads.opening import Opener
from vlpipe.heads.sources import parse_source
from vlpipe.heads.training import Outcome, Plan, train_run
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.writer import write_manifest

torch.set_num_threads(1)


@dataclass
class World:
    """A manifest and a cache in a temporary folder, made of arrays."""

    root: Path
    manifest: Manifest
    arrays: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    def store(
        self,
        spec: str,
        side: Side,
        rows: np.ndarray,
        output: str = "pooled",
        *,
        status: Sequence[int] | None = None,
        weights: str = "w0",
        dtype: str = "float32",
        constants: dict[str, float] | None = None,
        content: int = 0,
        again: bool = False,
        manifest: str | None = None,
        turned: bool = False,
    ) -> None:
        """Write one output of one store, all rows of the manifest; `content` stands for what was encoded.

        `again` writes over what is there; `manifest` is another digest, `turned` the other order of ids.
        """
        table = "image_id" if side == "image" else "text_id"
        ids = self.manifest.table(side, [table])[table].to_pylist()
        writer = StoreWriter.open(
            store_path(self.cache, self.manifest.digest, spec, side),
            manifest=manifest or self.manifest.digest,
            side=side,
            encoder=spec,
            ids=ids[::-1] if turned else ids,
            outputs={output: ArraySpec(rows.shape[1:], dtype)},
            fingerprints={output: {"weights": weights, "layer": output}},
            constants=constants or {"logit_scale": 20.0},
        )
        states = np.array([Status.OK] * len(ids) if status is None else status, dtype=np.uint8)
        for block in range(-(-len(ids) // writer.block_rows)) if again else writer.missing():
            span = writer.span(block)
            picked = slice(span.start, span.stop)
            digests = np.random.default_rng([content, block]).integers(1, 256, (len(span), 16), np.uint8)
            with writer.claim(block) as mine:
                assert mine
                writer.write(block, {output: rows[picked].astype(dtype)}, states[picked], digests)
        self.arrays[spec, side] = rows

    def plan(
        self, kind: str, rule: str = "column", sources: dict[str, str] | None = None, **settings: Any
    ) -> Plan:
        """One run's plan, on features opened anew."""
        head = SHELF.load(kind)
        config = resolve(head.Config, settings)
        roles = roles_of(head, config)
        given = {name: parse_source((sources or {}).get(name, "enc:a")) for name in roles}
        opener = Opener(self.manifest.folder, self.cache, self.runs)
        return Plan(kind, head, config, opener.joined(roles, given, rule), given, opener)

    def trained(self, kind: str, **more: Any) -> Outcome:
        """A run of the plan."""
        return train_run(self.plan(kind, **more), self.runs)


def image_rows(count: int, splits: Sequence[str | None]) -> list[dict[str, Any]]:
    return [
        {"image_id": f"i{n}", "path": f"{n}.jpg", "split": splits[n % len(splits)], "label": f"l{n % 3}"}
        for n in range(count)
    ]


def caption_rows(count: int, each: int) -> list[dict[str, Any]]:
    return [
        {"text_id": f"t{n}.{k}", "text": f"text {n} {k}", "image_id": f"i{n}", "role": "caption"}
        for n in range(count)
        for k in range(each)
    ]


Maker = Callable[..., World]


@pytest.fixture
def world(tmp_path: Path) -> Maker:
    """`world(images=..., each=...)`: captions that are noisy copies of a linear map of the images."""

    def make(
        images: int = 40,
        each: int = 3,
        image_width: int = 6,
        text_width: int = 6,
        splits: Sequence[str | None] = ("train", "train", "val", "test"),
        texts: list[dict[str, Any]] | None = None,
        dtype: str = "float32",
    ) -> World:
        rows = caption_rows(images, each) if texts is None else texts
        manifest = write_manifest(
            tmp_path / "manifest",
            name="tiny",
            source="made",
            licence="none",
            image_root=tmp_path,
            images=image_rows(images, splits),
            texts=rows,
        )
        made = World(tmp_path, manifest)
        rng = np.random.default_rng(0)
        x = rng.normal(size=(images, image_width))
        latent = x @ rng.normal(size=(image_width, text_width))
        owner = [int(str(row.get("image_id") or "i0")[1:]) for row in rows]
        y = latent[owner] + 0.3 * rng.normal(size=(len(rows), text_width))
        made.store("enc:a", "image", x, dtype=dtype)
        made.store("enc:a", "text", y, dtype=dtype)
        return made

    return make
