"""Names of outputs: which are taken by default, and how layers are counted.

Layer 0 is the embeddings, layer k the state after block k, up to the number of blocks L; -1 is L, -(L + 1) is 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vlpipe.foundation.errors import UnknownNameError, UsageError

MAIN = ("pooled", "mean", "cls", "patch_mean")  # only texts have a plain mean
_LAYER = re.compile(r"layer_(-?\d+)\.(\w+)")


def layer_name(layer: int, pooling: str) -> str:
    """`layer_06.mean`."""
    return f"layer_{layer:02d}.{pooling}"


def layer_of(name: str) -> tuple[int, str] | None:
    """`layer_06.mean` -> (6, "mean"); None for an output that is not a layer's."""
    found = _LAYER.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def main_output(known: Iterable[str]) -> str:
    """The output that is taken when none is named: pooled, else a text's mean or an image's cls."""
    names = list(known)
    return next((name for name in MAIN if name in names), names[0])


def find_output(name: str, known: Mapping[str, object] | Iterable[str]) -> str:
    """The canonical name: `layer_-1.mean` and `layer_6.mean` become `layer_12.mean` and `layer_06.mean`.

    Raises `UsageError` for a layer that the model does not have, `UnknownNameError` for any other name.
    """
    names = list(known)
    asked = layer_of(name)
    layers = [found[0] for found in map(layer_of, names) if found]
    if asked and layers:
        last = max(layers)
        if not -last - 1 <= asked[0] <= last:
            raise UsageError(
                f"output '{name}': the model has layers 0 (embeddings) to {last}, or -1 to {-last - 1}"
            )
        name = layer_name(asked[0] % (last + 1), asked[1])
    if name not in names:
        raise UnknownNameError("output", name, names)
    return name
