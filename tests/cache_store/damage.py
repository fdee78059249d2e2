"""Damage to the files of a store, as a module that tests use."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from vlpipe.cache_store.reader import open_features
from vlpipe.foundation.errors import VlpipeError


def everything(store: Path, name: str, strategy: Any) -> tuple[Any, ...]:
    """All that a reader sees of an output."""
    features = open_features(store, name, strategy=strategy)
    rows = features.take(np.flatnonzero(features.usable)).tobytes()
    own = (features.manifest, features.side, features.encoder, features.constants, features.fingerprint)
    return (*own, features.ids, features.status.tobytes(), features.shape, features.dtype, rows)


def flip(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, draw: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: draw.randrange(len(data))])


def remove(path: Path, _: random.Random) -> None:
    path.unlink()


def damage_every_file(sample: Any, full: Path, rounds: int, seed: int) -> tuple[int, int]:
    """Flip or cut each file of a store so many times; returns the cases tried and those noticed."""
    draw = random.Random(seed)
    files = [path for path in sorted(full.rglob("*")) if path.is_file() and path.stat().st_size]
    names = sorted(sample.OUTPUTS)
    whole = {name: everything(full, name, "resident") for name in names}
    tried = noticed = 0
    for path in files:
        kept = path.read_bytes()
        for turn in range(rounds):
            (truncate if turn % 2 else flip)(path, draw)
            strategy = draw.choice(["resident", "mapped", "blocks"])
            for name in names:
                tried += 1
                try:
                    assert everything(full, name, strategy) == whole[name], path
                except VlpipeError:
                    noticed += 1
            path.write_bytes(kept)
    return tried, noticed
