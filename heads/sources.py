"""Where a role's rows come from: a cache output, then the transforms of finished runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from vlpipe.cache_store.errors import NotCachedError, StaleCacheError
from vlpipe.cache_store.group import Group, output_names
from vlpipe.cache_store.layout import Side, Status, slug, store_path
from vlpipe.cache_store.reader import FeatureSet, open_features
from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError
from vlpipe.heads.contracts import Role, Source
from vlpipe.heads.tables import BoolArray, IntArray
from vlpipe.manifests.manifest import Manifest

HOW = "expected SPEC#OUTPUT or SPEC#OUTPUT::RUN, for example hf:facebook/dinov2-small#cls"


class Transform(Protocol):
    """What a finished run does to rows on their way to another head."""

    identity: str
    head: Any

    def __call__(self, rows: Tensor, side: Side) -> Tensor:
        """(rows, *shape) to (rows, *other shape)."""
        ...


def parse_source(text: str) -> Source:
    """`SPEC#OUTPUT::RUN::RUN` taken apart; the output may be left out. Raises `UsageError`."""
    output, *through = text.split("::")
    spec, _, name = output.partition("#")
    if not spec or "#" in name or not all(through):
        raise UsageError(f"source '{text}': {HOW}")
    return Source(output, tuple(through))


def parse_sources(texts: Sequence[str], roles: Mapping[str, Role]) -> dict[str, Source]:
    """`role=SPEC#OUTPUT[::RUN]` options, by role. Raises `UsageError`, `UnknownNameError` for a role."""
    found = {}
    for text in texts:
        role, equals, source = text.partition("=")
        if not equals:
            raise UsageError(f"source '{text}': expected role=SPEC#OUTPUT, with role one of {', '.join(roles)}")
        if role not in roles:
            raise UnknownNameError("role", role, roles)
        found[role] = parse_source(source)
    return found


def spread_sources(given: Mapping[str, Source], roles: Mapping[str, Role]) -> dict[str, Source]:
    """A source for every role: one without its own takes that of the first role of its side."""
    chosen = {}
    for name, role in roles.items():
        first = next(first for first, other in roles.items() if other.side == role.side)
        source = given.get(name, given.get(first))
        if source is None:
            raise UsageError(
                f"role '{first}' has no source; give --encoder SPEC for all roles, or --source {first}=SPEC#OUTPUT"
            )
        chosen[name] = source
    return chosen


class CachedRows:
    """One source's rows by their position in the manifest's table, as float32 tensors (float64 after some runs).

    `usable` (rows,) is False where the row failed or has not been encoded; `provenance` is all that decides
    the values, by name. `under` is a run that a head stands on: it is named with the others, but changes no row.
    """

    def __init__(self, features: FeatureSet, through: Sequence[Transform], under: Transform | None = None) -> None:
        self.features = features
        self.through = through
        self.under = under
        self.usable: BoolArray = features.usable
        self.shape = tuple(self._transformed(torch.zeros(1, *features.shape)).shape[1:])

    @property
    def provenance(self) -> dict[str, Any]:
        """Output, fingerprint, dtype at rest, digest of what was encoded, and the runs that rows went through."""
        features = self.features
        return {
            "output": features.output,
            "fingerprint": dict(features.fingerprint),
            "dtype": str(features.dtype),
            "content": features.content_digest,
            "through": [step.identity for step in (*self.through, self.under) if step is not None],
        }

    def take(self, rows: IntArray) -> Tensor:
        """Some rows, (len(rows), *shape); raises where one is not usable."""
        raw = torch.from_numpy(self.features.take(rows))
        return self._transformed(raw.to(torch.float32))

    def counts(self) -> dict[str, int]:
        """Rows of the manifest's table: usable, failed, absent (not encoded), and usable ones that are zero."""
        failed = int((self.features.status == Status.FAILED).sum())
        usable = int(self.usable.sum())
        absent = len(self.usable) - usable - failed
        return {"usable": usable, "failed": failed, "absent": absent, "zero": self.zeros}

    @cached_property
    def zeros(self) -> int:
        """Usable rows that are zero throughout; normalised they stay zero."""
        blocks = (block.rows.reshape(len(block.rows), -1) for block in self.features.blocks())
        return sum(int((~rows.any(axis=1)).sum()) for rows in blocks)

    def _transformed(self, rows: Tensor) -> Tensor:
        for transform in self.through:
            rows = transform(rows, self.features.side)
        return rows


def open_output(cache: Path, manifest: Manifest, output: str, side: Side, ids: Sequence[str]) -> FeatureSet:
    """The features of `SPEC#OUTPUT`, or of `SPEC` when its store has one output: row by row those of the ids.

    Raises `NotCachedError` with what is there and the command that makes them, `UsageError` where the output must
    be named, `StaleCacheError` for a store of another manifest's rows.
    """
    spec, _, name = output.partition("#")
    path = store_path(cache, manifest.digest, spec, side)
    known = output_names(path) if path.exists() else []
    if not name and len(known) > 1:
        raise UsageError(f"'{spec}' has {len(known)} outputs for the {side}s: name one, {_choices(spec, known)}")
    if not known or (name and name not in known):
        raise NotCachedError(
            f"no features '{output}' for the {side}s of manifest '{manifest.name}' in cache '{cache}'; "
            f"{_instead(path, spec, name, known, side)}: {extract_command(cache, manifest, spec, name, side)}"
        )
    features = open_features(path, name or known[0])
    if features.manifest != manifest.digest or features.ids != list(ids):
        raise StaleCacheError(
            f"'{path}' holds {len(features)} {side}s of the manifest with digest {features.manifest}, expected "
            f"{len(ids)} of '{manifest.name}' with digest {manifest.digest}, in its order; move that store away, "
            f"then: {extract_command(cache, manifest, spec, name, side)}"
        )
    return features


def _choices(spec: str, known: Sequence[str]) -> str:
    return " or ".join(f"{spec}#{name}" for name in known)


def _instead(store: Path, spec: str, name: str, known: Sequence[str], side: Side) -> str:
    """What is in the cache and may have been meant, up to the words before the command that makes the rest."""
    make = f"if the encoder has an output '{name}' for {side}s, make it with" if name else "make them with"
    if known:
        near = get_close_matches(name, known, n=1)
        meant = f"did you mean '{spec}#{near[0]}'? " if near else ""
        one = f"(for one role: --source ROLE={spec}#{known[0]})"
        return f"{meant}its outputs there are {', '.join(known)} {one}; {make}"
    if any(store.parent.glob(f"{slug(spec)}.*.zarr")):  # the other side's: the encoder is no slip of the pen
        return make
    ending = f".{side}.zarr"
    stores = {path.name.removesuffix(ending): path for path in store.parent.glob(f"[!.]*{ending}")}
    near = get_close_matches(slug(spec), stores, n=1)
    meant = f"did you mean '{_spoken(stores[near[0]], near[0])}', which is there? Else " if near else ""
    return meant + make


def _spoken(store: Path, name: str) -> str:
    """A store's encoder where that names it, else its own name."""
    try:
        encoder = Group.open(store).encoder
    except VlpipeError:
        return name
    return encoder if slug(encoder) == name else name


def extract_command(cache: Path, manifest: Manifest, spec: str, output: str, side: Side) -> str:
    """The command line that encodes one side with one output, quoted for a shell."""
    words = ["vlpipe", "extract", "--manifest", str(manifest.folder), "--encoder", spec, "--side", side]
    chosen = ["--output", output] if output else []
    return shlex.join([*words, *chosen, "--cache", str(cache)])
