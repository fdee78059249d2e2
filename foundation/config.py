"""Settings in layers: a model's defaults < a TOML file < `--set key=value` < explicit options."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError

C = TypeVar("C", bound="Config")


class Config(BaseModel):
    """Every option of one thing with its default; unknown keys are refused, values are never coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of one TOML file; raises `VlpipeError` when it is missing or is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise VlpipeError(f"configuration '{path}' does not exist; give the path of a TOML file") from None
    except OSError as error:
        raise VlpipeError(f"configuration '{path}' cannot be read: {error.strerror}; give a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise VlpipeError(f"configuration '{path}' is not TOML: {error}") from None


def parse_value(text: str) -> Any:
    """One TOML value, as it stands right of the equals sign; raises `tomllib.TOMLDecodeError`."""
    found = tomllib.loads(f"value = {text}")
    if len(found) > 1:
        raise tomllib.TOMLDecodeError("more than one value")
    return found["value"]


def parse_set(assignment: str) -> tuple[str, Any]:
    """`key=value` with the value in TOML's grammar; raises `UsageError`."""
    key, equals, text = assignment.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UsageError(f"--set '{assignment}': expected key=value, for example --set lr=1e-4")
    try:
        return key, parse_value(text.strip())
    except tomllib.TOMLDecodeError:
        raise UsageError(
            f"--set '{assignment}': '{text.strip()}' is not a TOML value; text needs quotes, "
            f"for example --set '{key}=\"{text.strip()}\"'"
        ) from None


def resolve(model: type[C], *layers: Mapping[str, Any]) -> C:
    """The model with later layers over earlier ones.

    Raises `UnknownNameError` with the nearest known key, `UsageError` for a value of the wrong type.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(layer)
    for key in merged:
        if key not in model.model_fields:
            raise UnknownNameError("setting", key, model.model_fields)
    try:
        return model.model_validate(merged)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "settings"
        raise UsageError(f"setting '{where}' = {first['input']!r}: {first['msg']}") from None


def parse_sets(assignments: Iterable[str]) -> dict[str, Any]:
    """All `--set` options as one layer."""
    return dict(parse_set(assignment) for assignment in assignments)
