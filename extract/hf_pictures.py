"""The picture side of a transformers model: prepared by its own processor, read as tokens or maps of any kind.

- `cls` is the class token, `tokens` are the patches alone: class, register and distillation tokens are left out.
- A model of maps (ResNet) or of stages (Swin) gives the places of its last map as tokens, row by row. Its layers
  are its stages, each with its own number of tokens and width.
- MAE drops and shuffles patches even in evaluation mode; here it sees all of them, in their order.
- `tokens_joint` are the patches in the space that both sides of a model share (`hf_joint` says how).
- Where each picture has its own number of patches (SigLIP 2 NaFlex), there are means over those, and no tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vlpipe.cache_store.layout import ArraySpec
from vlpipe.extract.compute import exact, pixels_to
from vlpipe.extract.contracts import Prepared
from vlpipe.extract.hf_joint import Joint, joint_reader
from vlpipe.extract.hf_states import Tower, answer_names, read_answer, real_mean, specs
from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.files import canonical_json

JOINT = "tokens_joint"
_READ = ("pixel_values", "pixel_attention_mask", "spatial_shapes")  # of what a processor gives


class HfPictures:
    """Pictures through one tower. `name` is the encoder's spec, for messages."""

    def __init__(self, name: str, tower: Tower, processor: Any) -> None:
        self.name, self.tower, self.processor = name, tower, processor
        self.masked = tower.config.model_type == "vit_mae"
        if self.masked:
            tower.config.mask_ratio = 0.0

    def identity(self) -> dict[str, str]:
        """The processor's settings, its class among them."""
        return {"preprocessing": canonical_json(json.loads(self.processor.to_json_string()))}

    def prepare(self, picture: Image.Image) -> Prepared:
        """Pixels (3, height, width), or patches with their mask. Raises `VlpipeError` for a size of its own."""
        tensors = self._pixels(picture)
        shape, expected = tensors["pixel_values"].shape, self._blank["pixel_values"].shape[1:]
        if shape != expected:
            raise VlpipeError(
                f"{self.name} makes {tuple(shape)} of a picture of {picture.size}, expected {tuple(expected)} as "
                "of any other: let its preprocessor_config.json crop, or resize to a square"
            )
        return Prepared(tensors)

    @cached_property
    def outputs(self) -> dict[str, ArraySpec]:
        """Every output with its shape, as the model gives it for a blank picture."""
        with exact():
            names = answer_names(self._probe, self.tower.head, self._poolings)
            top = {"mean": "patch_mean"}  # a picture's own mean is none of its texts'
            names = [top.get(name, name) for name in names]
            if "tokens" in names and self._joint is not None:
                names.append(JOINT)
            return specs(self._read(self._probe, names, self._blank))

    def run(self, tensors: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """The asked outputs of a batch, (rows, *shape) each; keeps gradients where they are on."""
        answer = self._answer(tensors, hidden=any("." in name for name in outputs))
        return self._read(answer, outputs, tensors)

    def _pixels(self, picture: Image.Image) -> dict[str, Tensor]:
        found = self.processor(picture, return_tensors="pt")
        return {name: found[name][0] for name in _READ if name in found}

    @cached_property
    def _blank(self) -> dict[str, Tensor]:
        return {name: tensor[None] for name, tensor in self._pixels(Image.new("RGB", (256, 256))).items()}

    @cached_property
    def _probe(self) -> Any:
        with exact():
            return self._answer(self._blank, hidden=True)

    def _answer(self, tensors: Mapping[str, Tensor], hidden: bool) -> Any:
        inputs = {name: tensor.to(self.tower.device) for name, tensor in tensors.items()}
        inputs["pixel_values"] = pixels_to(self.tower.device, self.tower.dtype, tensors["pixel_values"])
        if self.masked:  # patches are sorted by this noise
            order = torch.arange(
                self._grid(tensors["pixel_values"]), dtype=torch.float32, device=self.tower.device
            )
            inputs["noise"] = order.expand(len(inputs["pixel_values"]), -1)
        return self.tower.call(**inputs, output_hidden_states=hidden)

    def _read(self, answer: Any, outputs: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        real = tensors.get("pixel_attention_mask")
        mask = None if real is None else real.to(self.tower.device, torch.bool)

        def pool(state: Tensor, pooling: str) -> Tensor:
            if pooling == "cls":
                return state[:, 0]
            patches = self._patches(state)  # (rows, patches, width)
            if pooling == "tokens":
                return patches
            if pooling == JOINT and self._joint is not None:
                return self._joint(patches.to(self.tower.dtype)).float()
            return patches.mean(1) if mask is None else real_mean(patches, mask)

        return read_answer(answer, outputs, pool)

    def _patches(self, state: Tensor) -> Tensor:
        return state.flatten(2).transpose(1, 2) if state.ndim == 4 else state[:, self._prefix :]

    def _poolings(self, state: Tensor) -> list[str]:
        if "pixel_attention_mask" in self._blank:
            return ["mean"]
        first = ["cls"] if state.ndim == 3 and self._prefix else []
        return [*first, "mean", "tokens"]

    def _grid(self, pixels: Tensor) -> int:
        size = self.tower.config.patch_size
        return int((pixels.shape[-2] // size) * (pixels.shape[-1] // size))

    @cached_property
    def _joint(self) -> Joint | None:
        if self.tower.head != "pooled":
            return None
        with exact():
            return joint_reader(self.tower.modules, self._probe.last_hidden_state, self._probe.pooler_output)

    @cached_property
    def _prefix(self) -> int:
        """Tokens before the patches: class, registers, distillation."""
        if "pixel_attention_mask" in self._blank:
            return 0
        state = self._probe.last_hidden_state
        if state.ndim == 4:
            return 0
        last = (self._probe.get("reshaped_hidden_states") or self._probe.hidden_states)[-1]
        if last.ndim != 4 and not isinstance(getattr(self.tower.config, "patch_size", None), int):
            raise VlpipeError(f"{self.name} gives states of shape {tuple(state.shape)}: neither maps nor patches")
        patches = last.shape[2] * last.shape[3] if last.ndim == 4 else self._grid(self._blank["pixel_values"])
        prefix = int(state.shape[1]) - patches
        registers = getattr(self.tower.config, "num_register_tokens", 0) or 0
        distilled = any(name.endswith("distillation_token") for name, _ in self.tower.modules.named_parameters())
        if prefix not in (0, 1, 1 + registers, 1 + distilled):
            raise VlpipeError(f"{self.name} gives {state.shape[1]} tokens for {patches} patches: unknown geometry")
        return prefix
