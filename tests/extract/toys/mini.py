"""Miniature manifests, and jobs of the toy encoder over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vlpipe.cache_store.layout import Side
from vlpipe.extract.job import Job
from vlpipe.extract.load import load_encoder
from vlpipe.extract.run import Summary
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.writer import write_manifest

BAD = ["empty.jpg", "page.jpg", "cut.png", "folder.png", "gone.png"]


def manifest(folder: Path, root: Path, paths: list[str], texts: list[str]) -> Manifest:
    return write_manifest(
        folder, name="mini", source="made", licence="none", image_root=root,
        images=[{"image_id": f"i:{path}", "path": path, "split": "train"} for path in paths],
        texts=[{"text_id": f"t{n}", "text": t, "role": "caption", "split": "train"} for n, t in enumerate(texts)],
    )  # fmt: skip


def command(found: Manifest, cache: Path, *more: str) -> list[str]:
    return [
        "extract",
        "--manifest",
        str(found.folder),
        "--cache",
        str(cache),
        "--encoder",
        "toys.toy:Toy:m",
        *more,
    ]


def captions(count: int) -> list[str]:
    return [f"{'a' * (n % 5)}{'b' * (n % 3)} {n}" + " long long" * (n % 7) for n in range(count)]


def job(found: Manifest, cache: Path, side: Side = "image", settings: Any = None, **options: Any) -> Job:
    encoder = load_encoder(f"toys.toy:Toy:{options.pop('model', 'm')}", settings or {})
    outputs = options.pop("outputs", ("pooled",))
    return Job(found, encoder, "toy", side, outputs, cache, **{"batch_size": 16, **options})


def counts(summary: Summary) -> tuple[int, int, int, int, int]:
    return summary.encoded, summary.already, summary.ok, summary.cut, summary.failed


def store_files(store: Path) -> dict[str, bytes]:
    """Every file of a store but for what says when it was made, and the locks."""
    files = {str(p.relative_to(store)): p for p in store.rglob("*") if p.is_file()}
    return {n: p.read_bytes() for n, p in files.items() if not n.startswith("status/locks") and n != "zarr.json"}
