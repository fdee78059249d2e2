"""Vision models of the timm library: `timm:MODEL[@CHECKPOINT]`.

MODEL is a name of the library with or without a tag (vit_small_patch14_dinov2.lvd142m), a local folder with a
`config.json` of timm's, or `hf-hub:NAME`. Weights are the tag's, the folder's, or those of CHECKPOINT, a
safetensors or PyTorch file; also one of the model's authors, where the library knows that form (DINOv2, SwAV's
ResNet-50). Pictures are prepared as the model's own data configuration says. `pooled` is what the classifier would
read; layers are numbered as in `timm_trunk`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import timm
import torch
from pydantic import Field
from torch import Tensor, nn

from vlpipe.cache_store.layout import ArraySpec, Side
from vlpipe.extract.block_states import ImageState, kernels, layer_specs
from vlpipe.extract.compute import DTYPE, Precision, exact, pixels_to
from vlpipe.extract.contracts import ImageItem, Item, Prepared
from vlpipe.extract.digest import tensors_digest
from vlpipe.extract.hub import guarded, hub_answers
from vlpipe.extract.output_names import layer_of
from vlpipe.extract.timm_trunk import TimmTrunk
from vlpipe.foundation.config import Config
from vlpipe.foundation.devices import pick_device
from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError
from vlpipe.foundation.files import canonical_json, digest

CODE = 2  # version: raised when the same model and item would give another row
TOLD_APART = ("num_classes", "in_chans", "global_pool", "img_size")  # elsewhere in the identity, or of no weight
DATA: Any = timm.data  # only partly typed
PICTURES = ("mean", "std", "interpolation", "crop_pct", "crop_mode")


class TimmConfig(Config):
    """Settings of a timm model; those of pictures stand over the model's own data configuration."""

    precision: Precision = "float32"
    image_size: int | None = Field(default=None, ge=1)  # pixels a side; position embeddings are resampled to it
    mean: list[float] | None = Field(default=None, min_length=3, max_length=3)
    std: list[float] | None = Field(default=None, min_length=3, max_length=3)
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] | None = None
    crop_pct: float | None = Field(default=None, gt=0, le=1)
    crop_mode: Literal["center", "squash", "border"] | None = None
    random_init: bool = False  # seeded random weights, for tests only
    seed: int = 0
    device: str = "auto"


class Timm:
    """One image model without its classifier. Raises `VlpipeError` where it cannot be loaded whole."""

    Config: ClassVar[type[Config]] = TimmConfig
    constants: Mapping[str, float] = {}

    def __init__(self, model: str, config: TimmConfig) -> None:
        self.config = config
        source = Source(model, config)
        self.model = source.load()
        self.notes = source.notes
        if config.image_size and hasattr(self.model, "set_input_size"):
            source.guarded(self.model.set_input_size, (config.image_size, config.image_size))
        given = {name: getattr(config, name) for name in PICTURES} | {"img_size": config.image_size}
        self.preprocessing = DATA.resolve_model_data_config(self.model, args=given)
        self.transform = DATA.create_transform(**self.preprocessing, is_training=False)
        tensors = self.model.state_dict().items()
        self.weights = tensors_digest({n: tensor for n, tensor in tensors if not _of_classifier(self.model, n)})
        self.architecture = digest(
            [self.model.pretrained_cfg["architecture"], source.arguments, _pooling(self.model)]
        )
        self.device = pick_device(config.device)
        self.model.to(self.device, DTYPE[config.precision]).eval()
        self.trunk = TimmTrunk(self.model)

    def sides(self) -> tuple[Side, ...]:
        """Images only."""
        return ("image",)

    def identity(self, side: Side) -> Mapping[str, str]:
        """Weights and architecture without the classifier, data configuration, precision, kernels, code."""
        return {
            "weights": self.weights,
            "architecture": self.architecture,
            "preprocessing": canonical_json(self.preprocessing),
            "precision": self.config.precision,
            "kernels": kernels(self.model),
            "code": f"timm {CODE}",
        }

    def outputs(self, side: Side) -> Mapping[str, ArraySpec]:
        """pooled; cls where there is one, patch_mean, tokens (patches only) of the features; the same by layer."""
        return self._outputs if side == "image" else {}

    @cached_property
    def _outputs(self) -> dict[str, ArraySpec]:
        """The shapes that a blank picture gives: no configuration tells them for all families."""
        self.model.eval()
        pixels = torch.zeros(1, *self.preprocessing["input_size"], device=self.device)
        with exact():
            features, states = self.trunk.features(pixels.to(DTYPE[self.config.precision]), None)
            rows = self._rows(features, states, tuple(_FINAL))
        named = {name: ArraySpec(tuple(row.shape[1:])) for name, row in rows.items()}
        return named | layer_specs(states)

    def prepare(self, item: Item) -> Prepared:
        """Pixels (3, height, width) by the model's own data configuration."""
        if not isinstance(item, ImageItem):
            raise UsageError("encoder 'timm' encodes images, not texts")
        return Prepared({"image": self.transform(item.picture)})

    def collate(self, items: list[Prepared]) -> Prepared:
        """Stack: all pictures have one size."""
        pixels = torch.stack([item.tensors["image"] for item in items])
        return Prepared({"image": pixels}, tuple(flag for item in items for flag in item.cut))

    def encode(self, batch: Prepared, outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """The asked outputs in float32, in evaluation mode."""
        self.model.eval()
        with exact():
            return self.run(batch.tensors, outputs)

    def run(self, tensors: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """One pass for all asked outputs; keeps gradients where they are on."""
        pixels = pixels_to(self.device, DTYPE[self.config.precision], tensors["image"])
        layers = {found[0] for found in map(layer_of, outputs) if found}
        features, states = self.trunk.features(pixels, layers)
        return self._rows(features, states, outputs)

    def tower(self, side: Side, output: str | None = None) -> nn.Module:
        """Prepared tensors in, pooled features (rows, width) out."""
        return _Tower(self)

    def _rows(
        self, features: Tensor, states: Mapping[int, ImageState], outputs: tuple[str, ...]
    ) -> dict[str, Tensor]:
        final = self.trunk.final(features)
        rows = {}
        for name in outputs:
            if name == "pooled":
                rows[name] = self.model.forward_head(features, pre_logits=True).float()
            elif found := layer_of(name):
                rows[name] = states[found[0]].pool(found[1])
            elif _FINAL[name] in final.poolings:
                rows[name] = final.pool(_FINAL[name])
        return rows


_FINAL = {"pooled": "", "cls": "cls", "patch_mean": "mean", "tokens": "tokens"}  # and how the features are read


class Source:
    """What a spec's model part names: where architecture and weights come from."""

    def __init__(self, model: str, config: TimmConfig) -> None:
        if not model:
            raise UsageError("encoder 'timm' needs a model: timm:NAME[@FILE], timm:FOLDER or timm:hf-hub:NAME")
        self.spec, self.config = f"timm:{model}", config
        self.notes: list[str] = []
        on_hub = model.startswith("hf-hub:")  # an @ in there names a revision
        given, _, file = (model, "", "") if on_hub else model.partition("@")
        folder = Path(given).expanduser()
        self.name = f"local-dir:{folder}" if folder.is_dir() else given
        self.file = Path(file).expanduser() if file else None
        asks = on_hub or not (folder.is_dir() or self.file or config.random_init)
        self.offline = asks and not hub_answers()
        self._check(folder)
        self.arguments = self._arguments(folder, on_hub)

    def load(self) -> Any:
        """The model with its weights, in float32 on the CPU."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            fetch = self.file is None and not self.config.random_init
            model = self.guarded(timm.create_model, self.name, pretrained=fetch)
        if self.file is not None:
            self._fill(model, self.file)
        return model

    def guarded(self, call: Any, *given: Any, **options: Any) -> Any:
        """The call's result; whatever it raises becomes a `VlpipeError` of one line."""
        hint = "without a network give a local checkpoint, timm:MODEL@FILE, or a folder"
        if self.file is not None:
            hint = f"expected a file with weights of {self.name}"
        return guarded(self.spec, hint, self.offline, call, *given, **options)

    def _check(self, folder: Path) -> None:
        if self.file is not None:
            if self.config.random_init or folder.is_dir():
                raise UsageError(f"'{self.spec}': no checkpoint goes with a folder or with random_init")
            if not self.file.is_file():
                raise VlpipeError(f"'{self.spec}': there is no checkpoint file '{self.file}'")
        if ":" in self.name:
            return
        if "/" in self.name:
            raise VlpipeError(
                f"'{self.spec}': there is no folder '{self.name}'; names of the hub begin with hf-hub:"
            )
        architecture = self.name.partition(".")[0]
        if not timm.is_model(architecture):
            known = timm.list_models()
            raise UnknownNameError(
                "timm model", architecture, get_close_matches(architecture, known, n=5, cutoff=0)
            )
        tagged = timm.list_models(f"{architecture}.*", pretrained=True)
        if self.name != architecture and self.name not in tagged:
            raise UnknownNameError("tagged timm model", self.name, tagged)

    def _arguments(self, folder: Path, on_hub: bool) -> dict[str, Any]:
        """What a folder's or a hub's configuration makes other than the named architecture."""
        if on_hub:
            found = self.guarded(timm.models.load_model_config_from_hf, self.name.removeprefix("hf-hub:"))[2]
        elif folder.is_dir():
            text = self.guarded((folder / "config.json").read_text, encoding="utf-8")
            found = self.guarded(json.loads, text).get("model_args")
        else:
            found = None
        return {name: value for name, value in (found or {}).items() if name not in TOLD_APART}

    def _fill(self, model: Any, file: Path) -> None:
        """Load a checkpoint file as data, without its classifier; every other tensor must be there."""
        state = self.guarded(timm.models.load_state_dict, str(file), weights_only=True)
        convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
        if convert is not None:
            state = self.guarded(convert, state, model)
        kept = {name: tensor for name, tensor in state.items() if not _of_classifier(model, name)}
        result = self.guarded(model.load_state_dict, kept, strict=False)
        missing = [name for name in result.missing_keys if not _of_classifier(model, name)]
        if missing:
            raise VlpipeError(
                f"'{self.spec}': the checkpoint lacks {len(missing)} tensors that the model needs, first "
                f"'{missing[0]}'; random weights are never extracted"
            )
        self.notes.append(
            f"{self.spec}: pictures are prepared as for {_tag(model)}; --set mean=... and others change it"
        )
        if unread := result.unexpected_keys:
            self.notes.append(f"{self.spec}: {len(unread)} tensors are not read, first '{unread[0]}'")


class _Tower(nn.Module):
    """A model with its pooled features as the one result, for training."""

    def __init__(self, encoder: Timm) -> None:
        super().__init__()
        self.model = encoder.model
        self.read = encoder.run

    def forward(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """(rows, width) of prepared tensors."""
        return self.read(tensors, ("pooled",))["pooled"]


def _of_classifier(model: Any, name: str) -> bool:
    """Whether a tensor belongs to the classifier, which no output reads."""
    heads = model.pretrained_cfg.get("classifier") or ()
    return any(name.startswith(f"{head}.") for head in ((heads,) if isinstance(heads, str) else heads))


def _pooling(model: Any) -> str:
    """How the features are pooled: the library keeps a word or a module for it, in the model or in its head."""
    found = getattr(model, "global_pool", None) or getattr(getattr(model, "head", None), "global_pool", "")
    return str(getattr(found, "pool_type", found))


def _tag(model: Any) -> str:
    return ".".join(part for part in map(model.pretrained_cfg.get, ("architecture", "tag")) if part)
