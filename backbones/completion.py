"""From a trained text tower to finished runs on its texts, once these are in the cache."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from vlpipe.backbones.live import Live
from vlpipe.cache_store.errors import NotCachedError
from vlpipe.cache_store.fingerprint import differences
from vlpipe.evaluate.lineage import but_seeds
from vlpipe.extract.load import load_encoder
from vlpipe.foundation.errors import StaleError
from vlpipe.foundation.files import digest
from vlpipe.heads.contracts import Source, roles_of
from vlpipe.heads.runs import Run
from vlpipe.heads.sources import CachedRows, extract_command, parse_source
from vlpipe.heads.training import Adopted, Plan, train_run


def complete(live: Live, spec: str, settings: Mapping[str, Any], made_by: Mapping[str, Any]) -> Run | None:
    """The trained head as a run on the texts of `spec`, the saved tower; None while they are not all cached.

    A run that texts pass behind the tower is adopted too: the same weights, on the new texts. Raises `StaleError`
    where the cached texts were not made by the saved tower.
    """
    text = Source(f"{spec}#{live.output}")
    try:
        rows = live.opener.rows(text, "text")
    except NotCachedError:
        return None
    if rows.counts()["absent"]:
        return None
    _check_tower(live, spec, settings, rows)
    lineage = _lineage(live, made_by)
    for run_id in live.text.through:
        text = Source(text.output, (*text.through, _carried_over(live, run_id, text, lineage).id))
    sources = {"image": live.image, "text": text}
    joined = live.opener.joined(roles_of(live.head, live.config), sources)
    adopted = Adopted(dict(live.learner.head.state_dict()), lineage)
    plan = Plan(live.kind, live.head, live.config, joined, sources, live.opener, adopted)
    return train_run(plan, live.places.runs).run


def extract_line(live: Live, spec: str, settings: Mapping[str, Any]) -> str:
    """The command that encodes the manifest's texts with the saved tower, as exactly as the images were kept."""
    command = extract_command(live.places.cache, live.opener.manifest, spec, live.output, "text")
    given = [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    return shlex.join([*shlex.split(command), "--dtype", str(live.images.features.dtype), *given])


def _check_tower(live: Live, spec: str, settings: Mapping[str, Any], rows: CachedRows) -> None:
    saved = {**load_encoder(spec, settings).identity("text"), "output": live.output}
    cached = {name: value for name, value in rows.features.fingerprint.items() if name != "dtype"}
    found = differences(cached, saved)
    if found:
        raise StaleError(
            f"texts in '{rows.features.path}' were not made by the tower that this run trained: "
            f"{'; '.join(found)}; "
            f"move that store away, then: {extract_line(live, spec, settings)}"
        )


def _lineage(live: Live, made_by: Mapping[str, Any]) -> str:
    """All that decides the weights apart from seeds, also those of the runs that this one stands on."""
    image, runs = live.images.provenance, live.places.runs
    return digest(
        {
            **made_by,
            "manifest": live.opener.manifest.digest,
            "head": [live.kind, live.head.code],
            "text": live.start,
            "image": [image[name] for name in ("output", "fingerprint", "content")],
            "runs": [[but_seeds(Run.open(runs, r)) for r in side.through] for side in (live.image, live.text)],
        }
    )


def _carried_over(live: Live, run_id: str, text: Source, lineage: str) -> Run:
    """A finished run's weights as a run of its own whose texts come from `text`."""
    run = Run.open(live.places.runs, run_id)
    roles = run.roles
    sources = {name: text if roles[name].side == "text" else parse_source(run.sources[name]) for name in roles}
    adopted = Adopted(dict(run.head().state_dict()), digest([lineage, but_seeds(run)]))
    joined = live.opener.joined(roles, sources, run.split_rule)
    plan = Plan(run.kind, run.head_class, run.settings, joined, sources, live.opener, adopted)
    return train_run(plan, live.places.runs).run
