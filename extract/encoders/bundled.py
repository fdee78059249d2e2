"""Models that come with vlpipe: `bundled:mad-clip`, a small CLIP for MAD's digits.

`bundled:NAME@FILE` takes other weights of that architecture: a `weights.safetensors` of `vlpipe train-backbone`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from safetensors.torch import load_file, save
from torch import Tensor, nn

from vlpipe.cache_store.layout import ArraySpec, Side
from vlpipe.extract.compute import exact
from vlpipe.extract.contracts import ImageItem, Item, Prepared
from vlpipe.extract.digest import tensors_digest
from vlpipe.extract.small_clip import ImageTower, SmallClipConfig, TextTower, WordTokenizer
from vlpipe.foundation.config import Config, read_toml, resolve
from vlpipe.foundation.devices import pick_device
from vlpipe.foundation.errors import UnknownNameError, VlpipeError
from vlpipe.foundation.files import canonical_json, write_atomic

CODE = 1  # version: raised when the same weights and item would give another row
FOLDER = Path(__file__).parent.parent / "bundled"
SCALE = "objective.log_scale"
WEIGHTS = "weights.safetensors"


class BundledConfig(Config):
    """Settings of a bundled model."""

    device: str = "auto"
    init_seed: int | None = Field(default=None, ge=0)  # random weights instead of trained ones, to train from


class Bundled:
    """A small CLIP with both sides. Raises `UnknownNameError` for a name that does not come with vlpipe,
    `VlpipeError` for weights that cannot be read or are of another architecture.
    """

    Config: ClassVar[type[Config]] = BundledConfig

    def __init__(self, model: str, config: BundledConfig) -> None:
        name, _, checkpoint = model.partition("@")
        if name not in self.models():
            raise UnknownNameError("bundled model", name, self.models())
        self.name = name
        self.architecture = resolve(SmallClipConfig, read_toml(FOLDER / f"{name}.toml"))
        self.tokenizer = WordTokenizer(
            self.architecture.words, self.architecture.separator, self.architecture.context
        )
        self.device = pick_device(config.device)
        self.constants: Mapping[str, float] = {}
        self.towers = _towers(self.architecture, config.init_seed or 0)
        if config.init_seed is None:
            self._load(Path(checkpoint).expanduser() if checkpoint else FOLDER / f"{name}.safetensors")
        for tower in self.towers.values():
            tower.to(self.device).eval()

    @classmethod
    def models(cls) -> list[str]:
        """Names of the models that come with vlpipe."""
        return sorted(path.stem for path in FOLDER.glob("*.toml"))

    def _load(self, path: Path) -> None:
        try:
            tensors = load_file(path)
        except Exception as error:  # safetensors raises a kind of its own for every damage
            raise VlpipeError(f"weights '{path}' cannot be read ({error}); expected a safetensors file") from None
        for side, tower in self.towers.items():
            prefix = f"{side}."
            own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            try:
                tower.load_state_dict(own)
            except RuntimeError as error:
                reason = " ".join(str(error).split())
                raise VlpipeError(f"weights '{path}' are not of this architecture: {reason:.300}") from None
        if SCALE in tensors:
            self.constants = {"logit_scale": math.exp(tensors[SCALE].item())}

    def sides(self) -> tuple[Side, ...]:
        """Both."""
        return ("image", "text")

    def identity(self, side: Side) -> Mapping[str, str]:
        """The side's own weights, architecture, preprocessing or tokenizer, precision, kernels, code."""
        common = {
            "weights": tensors_digest(self.towers[side].state_dict()),
            "architecture": canonical_json(self.architecture.model_dump()),
            "precision": "float32",
            "kernels": "attention sdpa",
            "code": f"bundled {CODE}",
        }
        if side == "text":
            return common | {"tokenizer": "whole words, first end token read, end token fills"}
        pixels = self.architecture.side
        return common | {"preprocessing": f"RGB, bilinear to {pixels} x {pixels} unless it is that, x / 127.5 - 1"}

    def outputs(self, side: Side) -> Mapping[str, ArraySpec]:
        """`pooled`, the shared embedding, of both sides; `tokens`, the patches' states, of images."""
        pooled = {"pooled": ArraySpec((self.architecture.embedding,))}
        if side == "text":
            return pooled
        return pooled | {"tokens": ArraySpec(((self.architecture.side // 4) ** 2, self.architecture.width))}

    def prepare(self, item: Item) -> Prepared:
        """Pixels uint8 (3, side, side), or token numbers (context,); raises `VlpipeError` for an unknown word."""
        if isinstance(item, ImageItem):
            return Prepared({"pixels": self._pixels(item.picture)})
        tokens, cut = self.tokenizer.encode(item.text)
        return Prepared({"tokens": tokens}, (cut,))

    def _pixels(self, picture: Image.Image) -> Tensor:
        size = (self.architecture.side, self.architecture.side)
        if picture.size != size:
            picture = picture.resize(size, Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1).contiguous()

    def collate(self, items: list[Prepared]) -> Prepared:
        """Rows stacked: all pictures have one size, all texts one length."""
        tensors = {name: torch.stack([item.tensors[name] for item in items]) for name in items[0].tensors}
        return Prepared(tensors, tuple(flag for item in items for flag in item.cut))

    def encode(self, batch: Prepared, outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """The asked outputs in float32, in evaluation mode."""
        tensors = {name: tensor.to(self.device) for name, tensor in batch.tensors.items()}
        tower: Any = self.towers["image" if "pixels" in tensors else "text"].eval()
        with exact():
            if "pixels" not in tensors:
                return {name: tower(tensors) for name in outputs}
            states = tower.states(tensors)
            rows = {"pooled": tower.project(states[:, 0]), "tokens": states[:, 1:]}
            return {name: rows[name] for name in outputs}

    def tower(self, side: Side, output: str | None = None) -> nn.Module:
        """Prepared tensors in, `pooled` out, the one output that is trained."""
        return self.towers[side]

    def save(self, folder: Path, logit_scale: float | None = None) -> None:
        """Both towers and the logit scale, as `train-backbone` writes them."""
        tensors = {
            f"{side}.{name}": tensor.contiguous()
            for side, tower in self.towers.items()
            for name, tensor in tower.state_dict().items()
        }
        scale = logit_scale or self.constants.get("logit_scale")
        if scale is not None:
            tensors[SCALE] = torch.tensor(math.log(scale), dtype=torch.float64)
        write_atomic(folder / WEIGHTS, save(tensors, {"format": "pt"}))

    def saved(self, folder: Path) -> tuple[str, dict[str, Any]]:
        """`NAME@FILE`; no settings."""
        return f"{self.name}@{folder / WEIGHTS}", {}


def _towers(architecture: SmallClipConfig, seed: int) -> dict[Side, nn.Module]:
    """New towers, random by a seed of their own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return {"image": ImageTower(architecture), "text": TextTower(architecture)}
