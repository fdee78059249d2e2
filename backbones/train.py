"""One training run: names from the shelves, rows from a manifest, a folder with weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from torch import nn

from vlpipe.backbones.completion import complete, extract_line
from vlpipe.backbones.contracts import SHELF as OBJECTIVES
from vlpipe.backbones.contracts import Objective, Scaled
from vlpipe.backbones.data import Pairs, load_pairs
from vlpipe.backbones.exported import export
from vlpipe.backbones.live import Live, Places
from vlpipe.backbones.loop import LOG, Loop
from vlpipe.backbones.settings import LoopConfig
from vlpipe.backbones.state import STATE, WEIGHTS
from vlpipe.extract.contracts import Encoder, Savable
from vlpipe.extract.load import encoder_class, load_encoder
from vlpipe.foundation.config import Config, read_toml, resolve
from vlpipe.foundation.errors import StaleError, UsageError, VlpipeError
from vlpipe.foundation.files import digest, write_atomic
from vlpipe.heads.contracts import Source, load_head
from vlpipe.heads.opening import Opener
from vlpipe.heads.sources import parse_source
from vlpipe.manifests.manifest import Manifest

CONFIG = "config.toml"


@dataclass(frozen=True)
class Parts:
    """What learns: an encoder's towers and the objective; `live` where images are cached."""

    encoder: Encoder
    towers: dict[str, nn.Module]
    objective: Objective
    live: Live | None = None

    def decides(self) -> dict[str, Any]:
        """All that decides the trained weights beside settings and manifest."""
        if self.live is not None:
            return self.live.decides()
        return {side: dict(self.encoder.identity(side)) for side in self.encoder.sides()}


def train(
    objective: str, manifest_path: Path, spec: str, out: Path, config: LoopConfig, places: Places | None = None
) -> dict[str, Any]:
    """Train the towers of an encoder on the manifest's `train` split, validated on its `val` split.

    `spec` is SPEC, for an objective on cached images also SPEC#OUTPUT::RUN. Returns the last line of the log with
    `weights`, the kept tensors, `encoder`, the spec of the trained encoder in its library's format, and for an
    objective on cached images `run`, the finished head's run, or `then`, the command that has to come before the
    same call again. Raises `VlpipeError` for an unknown name, a manifest without captioned training images, or a
    row that cannot be read; `StaleError` when `out` holds another run, or a run was trained on other rows.
    """
    manifest = Manifest.open(manifest_path)
    _claim(out, config)  # before minutes of work, not after
    parts = _parts(objective, manifest_path, spec, config, places or Places())
    made_by = {
        "objective": objective,
        "config": _deciding(config),
        "encoder": parts.decides(),
        "manifest": manifest.digest,
    }
    pairs = _pairs(manifest, parts, "train")
    if pairs is None:
        raise VlpipeError(
            f"manifest '{manifest_path}' has no image of the split 'train' with a text of the role 'caption'"
            f"{' and a usable cached row' if parts.live else ''}; training needs both"
        )
    loop = Loop(config, parts.towers, parts.objective, digest(made_by))
    if not (out / STATE).is_file():
        write_atomic(out / CONFIG, tomli_w.dumps(config.model_dump(exclude_none=True)).encode())
    result = loop.train(pairs, _pairs(manifest, parts, "val"), out) | {"weights": str(out / WEIGHTS)}
    if not isinstance(parts.encoder, Savable):
        return result
    scale = float(parts.objective.log_scale.detach().exp()) if isinstance(parts.objective, Scaled) else None
    model, settings = export(parts.encoder, loop.parts, out, scale)
    name = parse_source(spec).output.partition("#")[0]
    trained = f"{name.removesuffix(encoder_class(name)[1]).rstrip(':')}:{model}"
    result["encoder"] = trained
    if parts.live is None:
        return result
    made_by = {"objective": objective, "config": _deciding(config, "seed")}
    run = complete(parts.live, trained, settings, made_by)
    return result | ({"run": run.id} if run else {"then": extract_line(parts.live, trained, settings)})


def _claim(out: Path, config: LoopConfig) -> None:
    """Raise `StaleError`, before anything is written, where files of these names are not those of such a run."""
    there = {name for name in (CONFIG, LOG, STATE, WEIGHTS) if (out / name).exists()}
    foreign = there - {CONFIG} if not there >= {CONFIG, STATE} else set()
    try:
        kept = resolve(LoopConfig, read_toml(out / CONFIG)) if CONFIG in there else config
    except VlpipeError:
        kept, foreign = config, {CONFIG}
    if foreign:
        raise StaleError(
            f"'{out}' holds a {min(foreign)} that is no whole run of train-backbone; choose another --out"
        )
    had, asked = _deciding(kept), _deciding(config)
    told = [f"{name} = {had[name]} there, {asked[name]} asked" for name in asked if had[name] != asked[name]]
    if told and STATE in there:
        raise StaleError(
            f"'{out}' holds a run with other settings: {'; '.join(told)}; choose another --out or remove it"
        )


def _deciding(config: LoopConfig, *but: str) -> dict[str, Any]:
    """The settings that decide the weights, and not where they are computed."""
    return config.model_dump(exclude={**dict.fromkeys(("threads", *but), True), "encoder": {"device"}})


def _pairs(manifest: Manifest, parts: Parts, split: str) -> Pairs | None:
    return load_pairs(manifest, parts.encoder, split, cached=parts.live.images if parts.live else None)


def _parts(objective: str, manifest: Path, spec: str, config: LoopConfig, places: Places) -> Parts:
    family, settings = settled(objective, spec, config)
    text = parse_source(spec)
    encoder = load_encoder(text.output.partition("#")[0], config.encoder)
    if not hasattr(family, "named"):
        return _of_pictures(objective, family(settings), encoder, text, places)
    live = Live(family, settings, encoder, text, places, Opener(manifest, places.cache, places.runs), config)
    return Parts(encoder, live.towers, live.learner, live)


def settled(objective: str, spec: str, config: LoopConfig) -> tuple[Any, Config]:
    """An objective's class and settings; raises, before anything is read, `UnknownNameError`, `UsageError` for
    settings of it, of its head or of the encoder that are wrong or do not go together.
    """
    family = OBJECTIVES.load(objective)
    settings = resolve(family.Config, config.objective)
    resolve(encoder_class(parse_source(spec).output.partition("#")[0])[0].Config, config.encoder)
    if not hasattr(family, "named"):
        return family, settings
    kind, given = family.named(settings)
    resolve(load_head(kind).Config, given)
    if config.text_warmup_steps:
        raise UsageError(
            f"text_warmup_steps = {config.text_warmup_steps}: '{objective}' starts from trained texts"
        )
    if config.text_lr is None:  # at `lr`, which suits what starts from nothing, a trained tower forgets
        raise UsageError(
            f"text_lr: '{objective}' needs the rate of the text tower, well below lr = {config.lr:g}; TEVI sweeps "
            "1e-4, 1e-5 and 1e-6: --set text_lr=1e-5"
        )
    return family, settings


def _of_pictures(objective: str, learner: Any, encoder: Encoder, text: Source, places: Places) -> Parts:
    """Both towers of an encoder."""
    if places.sources or text.through or "#" in text.output:
        raise UsageError(
            f"objective '{objective}' reads pictures and trains both towers; --source and SPEC#OUTPUT::RUN are "
            "for objectives on cached images, such as tevi"
        )
    if set(encoder.sides()) != {"image", "text"}:
        raise UsageError(
            f"encoder '{text.output}' has only the side {', '.join(encoder.sides())}; training needs both"
        )
    towers: dict[str, nn.Module] = {side: encoder.tower(side) for side in encoder.sides()}
    home = next((p.device for tower in towers.values() for p in tower.parameters()), "cpu")
    return Parts(encoder, towers, learner.to(home))
