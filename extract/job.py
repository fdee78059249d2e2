"""What is to be encoded, and where encoded rows go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vlpipe.cache_store.known import KnownContent
from vlpipe.cache_store.layout import ArraySpec, Side, store_path
from vlpipe.cache_store.opening import stored_dtype
from vlpipe.cache_store.writer import StoreWriter
from vlpipe.extract.contracts import Encoder
from vlpipe.extract.load import fingerprints
from vlpipe.extract.output_names import find_output
from vlpipe.extract.rows import Work
from vlpipe.manifests.manifest import Manifest


@dataclass(frozen=True)
class Target:
    """Some outputs of a store: who writes their rows, and how these are encoded."""

    writer: StoreWriter
    work: Work

    def lacks(self, block: int) -> bool:
        """Whether a block is not committed for all these outputs, whatever of them it has lost since."""
        return not self.work.outputs.keys() <= self.writer.outputs_of(block)

    @cached_property
    def known(self) -> KnownContent:
        """What the cache holds of these outputs already; made when it is first asked for."""
        return KnownContent(self.writer.donor())


@dataclass(frozen=True)
class Job:
    """What to encode and how. `name` is the store's: the encoder's spec, or what `--as` says.

    `batch_size`, `workers` and `tokens` are those of `Work`.
    """

    manifest: Manifest
    encoder: Encoder
    name: str
    side: Side
    outputs: tuple[str, ...]
    cache: Path
    dtype: str = "float16"
    batch_size: int = 64
    workers: int = 0
    retry_failed: bool = False
    check_content: bool = True
    tokens: int | None = None
    spec: str = ""  # with the settings: how another process loads the encoder
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        """The store's folder."""
        return store_path(self.cache, self.manifest.digest, self.name, self.side)

    def open(self, *, dry: bool = False) -> Target:
        """The asked outputs; makes the store, or goes on with it. Raises as `StoreWriter.open` does.

        A new store's blocks are small enough for the widest output of the encoder, which may be added later. With
        `dry` nothing is made, and nothing can be written.
        """
        known = {name: ArraySpec(spec.shape, self.dtype) for name, spec in self.encoder.outputs(self.side).items()}
        names = (find_output(name, known) for name in self.outputs)
        specs = {name: known[name] for name in names}
        writer = StoreWriter.open(
            self.store,
            manifest=self.manifest.digest,
            side=self.side,
            encoder=self.name,
            ids=self.manifest.table(self.side, [f"{self.side}_id"]).column(0),
            outputs=specs,
            fingerprints=fingerprints(self.encoder, self.side, specs),
            constants=self.encoder.constants,
            widest=max(spec.row_bytes for spec in known.values()),
            dry=dry,
        )
        return Target(writer, self._work(specs))

    def narrowed(self, asked: Target, names: Iterable[str]) -> Target:
        """These outputs only, asked ones or others of the store, each in the dtype that it is kept in.

        An output that the encoder does not know is left out. Raises `StaleCacheError`, `CorruptCacheError`.
        """
        known = self.encoder.outputs(self.side)
        specs = {
            name: asked.work.outputs.get(name) or ArraySpec(known[name].shape, stored_dtype(self.store, name))
            for name in names
            if name in known
        }
        if specs.keys() == asked.work.outputs.keys():
            return asked
        writer = asked.writer.of(specs, fingerprints(self.encoder, self.side, specs))
        return Target(writer, self._work(specs))

    def _work(self, specs: Mapping[str, ArraySpec]) -> Work:
        root = self.manifest.image_root
        return Work(self.encoder, self.side, specs, root, self.batch_size, self.workers, self.tokens)
