"""A trained encoder in its library's own format, as extract loads it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from vlpipe.backbones.state import WEIGHTS, load_weights
from vlpipe.extract.contracts import Savable
from vlpipe.foundation.files import file_digest, fsync_folder


def export(
    encoder: Savable, parts: Mapping[str, nn.Module], out: Path, logit_scale: float | None
) -> tuple[str, dict[str, Any]]:
    """Write the run's kept weights once, into a folder that is named by their digest and appears whole.

    The part of the spec that loads it, and its settings. Raises `VlpipeError` for weights that cannot be read.
    """
    load_weights(out, parts)
    folder = out / f"encoder-{file_digest(out / WEIGHTS)[:12]}"
    if not folder.is_dir():
        part = out / f".{folder.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        encoder.save(part, logit_scale)
        part.replace(folder)
        fsync_folder(out)
    return encoder.saved(folder)
