"""Many runs on the same resident features, one after the other: each equals itself trained alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from vlpipe.foundation.config import parse_value, resolve
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.heads.contracts import HeadConfig, Source, load_head, roles_of
from vlpipe.heads.opening import Opener
from vlpipe.heads.sources import parse_source, parse_sources, spread_sources
from vlpipe.heads.training import Outcome, Plan, train_run


@dataclass(frozen=True)
class Request:
    """What is asked for on one command line: one head, its rows, and its settings in layers."""

    kind: str
    opener: Opener
    runs: Path
    sources: tuple[str, ...] = ()  # role=SPEC#OUTPUT[::RUN]
    encoder: str | None = None  # for roles without a source
    split_rule: str = "column"


@dataclass(frozen=True)
class Member:
    """One run of a sweep: its settings that vary, and its outcome or why it has none."""

    varied: Mapping[str, Any]
    outcome: Outcome | None
    error: VlpipeError | None = None


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """`lr=1e-4,1e-3` with TOML values; raises `UsageError`."""
    key, equals, values = text.partition("=")
    try:
        found = parse_value(f"[{values}]")
    except ValueError:
        found = []
    if not equals or not key.strip() or not found:
        raise UsageError(f"--sweep '{text}': expected key=value,value with TOML values, for example lr=1e-4,1e-3")
    return key.strip(), found


def parse_seeds(text: str) -> list[int]:
    """`5,42,55`; raises `UsageError`."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--seeds '{text}': expected whole numbers, for example 5,42,55") from None


def members(lists: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of the lists' values, the last key fastest, none twice; one empty one for no lists.

    Raises `UsageError` for what is not a list or has no values.
    """
    for key, values in lists.items():
        if not isinstance(values, list) or not values:
            raise UsageError(f"sweep over '{key}' = {values!r}: expected a list with one value or more")
    once = [[v for n, v in enumerate(values) if v not in values[:n]] for values in lists.values()]
    for values in product(*once):
        yield dict(zip(lists, values, strict=True))


def run_sweep(
    request: Request, settings: Mapping[str, Any], lists: Mapping[str, Sequence[Any]]
) -> Iterator[Member]:
    """Train every member; one that fails is told and does not lose the others.

    Settings are checked for all members before the first one trains: a name or value that is wrong is no
    failure of one member, and raises.
    """
    head = load_head(request.kind)
    varied = list(members(lists))
    configs = [resolve(head.Config, settings, values) for values in varied]
    for values, config in zip(varied, configs, strict=True):
        yield _member(request, values, config)


def _member(request: Request, values: Mapping[str, Any], config: HeadConfig) -> Member:
    """One run; only where it stands alone does a fault of the head's own code show its traceback."""
    try:
        return Member(values, train_run(plan(request, config), request.runs))
    except VlpipeError as error:
        return Member(values, None, error)
    except Exception as error:
        if not values:
            raise
        return Member(values, None, VlpipeError(f"{type(error).__name__}: {error}"))


def plan(request: Request, config: HeadConfig) -> Plan:
    """One run's plan; raises what opening its features raises."""
    head = load_head(request.kind)
    roles = roles_of(head, config)
    sources = request_sources(request, roles)
    joined = request.opener.joined(roles, sources, request.split_rule)
    return Plan(request.kind, head, config, joined, sources, request.opener)


def request_sources(request: Request, roles: Mapping[str, Any]) -> dict[str, Source]:
    """A source for every role, from --source first and then --encoder."""
    given = parse_sources(request.sources, roles)
    if request.encoder is not None:
        everywhere = parse_source(request.encoder)
        sides = {roles[name].side for name in given}
        given |= {name: everywhere for name, role in roles.items() if name not in given and role.side not in sides}
    return spread_sources(given, roles)
