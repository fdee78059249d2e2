"""What made a run, apart from seeds: runs that share it are the seeds of one experiment."""

from __future__ import annotations

from vlpipe.foundation.files import digest
from vlpipe.heads.runs import Run
from vlpipe.heads.sources import parse_source


def but_seeds(run: Run) -> str:
    """Digest of head, version, settings, split rule, what was encoded, and upstream runs, but for all seeds.

    Weights that were trained elsewhere bring their own. Raises `UnknownNameError` where an upstream run is gone.
    """
    if "adopted" in run.record:
        return str(run.record["adopted"])
    return digest(
        {
            "kind": run.kind,
            "code": run.record["code"],
            "config": {name: value for name, value in run.config.items() if name != "seed"},
            "split_rule": run.split_rule,
            "manifest": run.manifest_digest,
            "content": {role: found.get("content") for role, found in run.provenance.items()},
            "fingerprints": run.fingerprints,
            "sources": {role: _steps(run, source) for role, source in run.sources.items()},
        }
    )


def _steps(run: Run, source: str) -> list[str]:
    """The cache output, then what made each upstream run."""
    parsed = parse_source(source)
    return [parsed.output, *(but_seeds(Run.open(run.folder.parent, name)) for name in parsed.through)]
