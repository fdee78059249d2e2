"""From a spec to an encoder, and from an encoder to the fingerprints of what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlpipe.cache_store.layout import ArraySpec, Side
from vlpipe.extract import pictures
from vlpipe.extract.contracts import SHELF, Encoder, Spec
from vlpipe.foundation.config import Config, resolve


def encoder_class(spec: str) -> tuple[type[Any], str]:
    """The class that a spec names, and the part of the spec that it reads itself.

    An outside class is `package.module:Class[:MODEL]`. Raises `UnknownNameError`, `UsageError`.
    """
    parsed = Spec.parse(spec)
    if "." in parsed.family:
        name, _, model = parsed.model.partition(":")
        return SHELF.load(f"{parsed.family}:{name}"), model
    return SHELF.load(parsed.family), parsed.model


def load_encoder(spec: str, settings: Mapping[str, Any]) -> Encoder:
    """A frozen model with its settings, ready to encode. Raises `VlpipeError` of a kind for what is wrong."""
    found, model = encoder_class(spec)
    config: Config = resolve(found.Config, settings)
    encoder: Encoder = found(model, config)
    return encoder


def fingerprints(encoder: Encoder, side: Side, outputs: Mapping[str, ArraySpec]) -> dict[str, dict[str, str]]:
    """All that decides the rows of each output, by field: what the cache compares before it is gone on with."""
    common = dict(encoder.identity(side))
    if side == "image":
        common["decoding"] = f"pictures {pictures.CODE}"
    return {name: common | {"output": name, "dtype": spec.dtype} for name, spec in outputs.items()}
