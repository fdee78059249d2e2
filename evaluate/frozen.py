"""Cached features as they are, as an ordinary run: what is measured of frozen models before any training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field
from torch import nn

from vlpipe.heads.contracts import Batch, HeadConfig, Role, Shapes
from vlpipe.heads.opening import Opener
from vlpipe.heads.sweep import Request, run_sweep

KIND = "vlpipe.evaluate.frozen:Frozen"


class Frozen(nn.Module):
    """Both sides' rows, of any widths: nothing is learned, and nothing can be scored."""

    class Config(HeadConfig):
        """Nothing to set."""

        epochs: int = Field(default=0, ge=0, le=0)

    roles: ClassVar[Mapping[str, Role]] = {"image": Role("image"), "text": Role("text")}
    code: ClassVar[int] = 1

    def __init__(self, config: Config, shapes: Shapes) -> None:
        super().__init__()
        for role in self.roles:
            shapes.width(role)  # raises where rows are no vectors

    def update(self, batch: Batch) -> dict[str, float]:
        """Nothing is learned."""
        return {}

    def finish(self) -> None:
        """Nothing is left to do."""

    def images(self, batch: Batch) -> Batch:
        """The rows (n, d) themselves."""
        return batch

    def texts(self, batch: Batch) -> Batch:
        """The rows (n, d) themselves."""
        return batch


def frozen_run(
    manifest: Path, cache: Path, runs: Path, sources: tuple[str, ...], encoder: str | None = None
) -> str:
    """Id of the run of these sources (`role=SPEC#OUTPUT`, `encoder` for a role without); made where there is none.

    Raises what opening the sources raises.
    """
    request = Request(KIND, Opener(manifest, cache, runs), runs, sources, encoder)
    (member,) = run_sweep(request, {}, {})
    if member.outcome is None:
        raise member.error or RuntimeError("a run has an outcome or an error")
    return member.outcome.run.id
