"""What a thing on a shelf is and which settings it takes, for people and as data."""

from __future__ import annotations

import inspect
import json
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

NAMES = {int: "integer", float: "number", str: "text", bool: "true or false", dict: "table"}
MOST = 28  # characters of a default, past which its line is no longer in columns
BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": "length >=", "max_length": "length <="}


def describe(found: type[Any]) -> dict[str, Any]:
    """Its docstring as 'about', and its settings: name, type, bounds, and the default ('' where none)."""
    return {"about": inspect.getdoc(found) or "", "settings": settings_of(getattr(found, "Config", None))}


def settings_of(config: type[Any] | None) -> list[dict[str, str]]:
    """The settings of one `Config`."""
    fields: dict[str, FieldInfo] = config.model_fields if config else {}
    return [
        {"name": name, "type": type_words(field.annotation), "bounds": _bounds(field), "default": _default(field)}
        for name, field in fields.items()
    ]


def settings_told(settings: list[dict[str, str]], given: str = "--set NAME=VALUE") -> str:
    """The same in lines; `given` is how the command line takes them."""
    names, defaults = ([setting[part] for setting in settings] for part in ("name", "default"))
    width, room = max(map(len, names), default=0), max(map(len, defaults), default=0)
    lines = [f"settings ({given}):" if settings else "no settings of its own"]
    for setting in settings:
        kind = f"{setting['type']} {setting['bounds']}".strip()
        lines.append(f"  {setting['name']:{width}}  {setting['default'] or '-':{min(room, MOST)}}  {kind}")
    return "\n".join(lines)


def type_words(kind: Any) -> str:
    """What values a setting takes, in TOML's terms."""
    arguments = get_args(kind)
    if get_origin(kind) is Annotated:
        return type_words(arguments[0])
    if get_origin(kind) is Literal:
        return " or ".join(json.dumps(value) for value in arguments)
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_words(part) for part in arguments if part is not types.NoneType))
    if get_origin(kind) in (list, tuple):
        inner = " or ".join(dict.fromkeys(type_words(part) for part in arguments if part is not ...))
        return f"list of ({inner})" if " or " in inner else f"list of {inner}"
    if hasattr(kind, "model_fields"):
        return f"table of {', '.join(kind.model_fields)}"
    return NAMES.get(get_origin(kind) or kind, str(kind))


def _bounds(field: FieldInfo) -> str:
    found = [(words, getattr(rule, name, None)) for rule in field.metadata for name, words in BOUNDS.items()]
    return ", ".join(f"{words} {bound}" for words, bound in found if bound is not None)


def _default(field: FieldInfo) -> str:
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    if value is None:
        return ""
    return json.dumps(value.model_dump() if hasattr(value, "model_dump") else value)
