"""One training run: names from the shelves, rows from a manifest, a folder with weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w
from torch import nn

from vlpipe.backbones.contracts import SHELF as OBJECTIVES
from vlpipe.backbones.contracts import Objective
from vlpipe.backbones.data import load_pairs
from vlpipe.backbones.loop import Loop
from vlpipe.backbones.settings import LoopConfig
from vlpipe.backbones.state import WEIGHTS
from vlpipe.extract.contracts import SHELF as ENCODERS
from vlpipe.extract.contracts import Encoder, Spec
from vlpipe.foundation.config import resolve
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.foundation.files import digest, write_atomic
from vlpipe.manifests.manifest import Manifest


def train(objective: str, manifest_path: Path, spec: str, out: Path, config: LoopConfig) -> dict[str, Any]:
    """Train the towers of an encoder on the manifest's `train` split, validated on its `val` split.

    Returns the last line of the log with `weights`, the file that the encoder loads as `SPEC@FILE`. Raises
    `VlpipeError` for an unknown name, a manifest without captioned training images, or a row that cannot be read;
    `StaleError` when `out` holds another run.
    """
    encoder, towers = _encoder(spec, config)
    family = OBJECTIVES.load(objective)
    learner: Objective = family(resolve(family.Config, config.objective))
    manifest = Manifest.open(manifest_path)
    run = {
        "objective": objective,
        "config": config.model_dump(exclude={"threads"}),
        "encoder": {side: dict(encoder.identity(side)) for side in encoder.sides()},
        "manifest": manifest.digest,
    }
    pairs = load_pairs(manifest, encoder, "train")
    if pairs is None:
        raise VlpipeError(
            f"manifest '{manifest_path}' has no image of the split 'train' with a text of the role 'caption'; "
            "training needs both"
        )
    loop = Loop(config, towers, learner, digest(run))
    write_atomic(out / "config.toml", tomli_w.dumps(config.model_dump(exclude_none=True)).encode())
    result = loop.train(pairs, load_pairs(manifest, encoder, "val"), out)
    return {**result, "weights": str(out / WEIGHTS)}


def _encoder(spec: str, config: LoopConfig) -> tuple[Encoder, dict[str, nn.Module]]:
    parsed = Spec.parse(spec)
    family = ENCODERS.load(parsed.family)
    encoder: Encoder = family(parsed.model, resolve(family.Config, config.encoder))
    if set(encoder.sides()) != {"image", "text"}:
        raise UsageError(f"encoder '{spec}' has only the side {', '.join(encoder.sides())}; training needs both")
    return encoder, {side: encoder.tower(side) for side in encoder.sides()}
