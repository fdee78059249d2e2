"""What miniatures of published sets are made with, and how their manifests are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlpipe.manifests.build import build
from vlpipe.manifests.manifest import Manifest


def touch(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"jpeg")


def dump(path: Path, data: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def caption(name: str, place: int) -> str:
    return f"Caption {place} of {name}, «with» \u2028 odd marks. "


def made(name: str, root: Path, out: Path, **settings: Any) -> Manifest:
    manifest = build(name, root, out, settings)
    manifest.verify()
    return manifest


def rows(manifest: Manifest) -> dict[str, dict[str, Any]]:
    texts = manifest.table("text").to_pylist()
    return {row["text_id"]: {k: v for k, v in row.items() if v not in (None, [])} for row in texts}
