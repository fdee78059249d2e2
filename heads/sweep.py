"""Many runs on the same resident features, in turn or as one: each equals itself trained alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from vlpipe.foundation.config import parse_value, resolve
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.heads.contracts import HeadConfig, Source, load_head, roles_of
from vlpipe.heads.opening import Opener
from vlpipe.heads.sources import parse_source, parse_sources, spread_sources
from vlpipe.heads.stack import attempt, trait
from vlpipe.heads.training import Outcome, Plan, train_run, train_runs


@dataclass(frozen=True)
class Request:
    """What is asked for on one command line: one head, its rows, and its settings in layers."""

    kind: str
    opener: Opener
    runs: Path
    sources: tuple[str, ...] = ()  # role=SPEC#OUTPUT[::RUN]
    encoder: str | None = None  # for roles without a source
    split_rule: str = "column"
    device: str = "cpu"
    together: int = 1  # runs of a sweep that train as one, at most


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
    done: dict[int, Outcome | Exception] = {}
    for number, values in enumerate(varied):
        if number not in done:
            done |= _trained(request, head, configs, number)
        yield _member(values, done[number])


def _trained(
    request: Request, head: type[Any], configs: Sequence[HeadConfig], first: int
) -> dict[int, Outcome | Exception]:
    """The run of one member, or also of those after it that can train with it as one, by number."""
    shared = trait(head, configs[first])
    alike = [n for n in range(first, len(configs)) if trait(head, configs[n]) == shared]
    numbers = alike[: request.together] if shared is not None else [first]
    if len(numbers) == 1:
        return {first: attempt(lambda: train_run(plan(request, configs[first]), request.runs, request.device))}
    done: dict[int, Outcome | Exception] = {}
    ready: dict[int, Plan] = {}
    for n in numbers:
        made = attempt(partial(plan, request, configs[n]))
        if isinstance(made, Plan):
            ready[n] = made
        else:
            done[n] = made
    ends = attempt(partial(train_runs, list(ready.values()), request.runs, request.device))
    return done | dict(zip(ready, [ends] * len(ready) if isinstance(ends, Exception) else ends, strict=True))


def _member(values: Mapping[str, Any], found: Outcome | Exception) -> Member:
    """One run; only where it stands alone does a fault of the head's own code show its traceback."""
    if isinstance(found, Outcome):
        return Member(values, found)
    if isinstance(found, VlpipeError):
        return Member(values, None, found)
    if not values:
        raise found
    return Member(values, None, VlpipeError(f"{type(found).__name__}: {found}"))


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
