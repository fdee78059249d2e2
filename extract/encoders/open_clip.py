"""Models of the open_clip library: `open_clip:MODEL[@PRETRAINED]`.

MODEL is a name of the library (ViT-B-16), a JSON configuration (a file: the model's settings, or a whole
`open_clip_config.json`), a local folder with an `open_clip_config.json`, or `hf-hub:NAME`. PRETRAINED is a tag of
the library (laion2b_s34b_b88k) or a checkpoint file; folders and hub names bring their own.

`tokens` are patches in the space of the joint embeddings (`clip_towers` says how, for each kind of tower),
`tokens_raw` the same patches before pooling and projection, `layer_NN` the states between the blocks.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import open_clip
import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor, nn

from vlpipe.cache_store.layout import ArraySpec, Side
from vlpipe.extract.block_states import kernels, layer_specs
from vlpipe.extract.clip_source import OpenClipConfig, Source
from vlpipe.extract.clip_towers import Seen, TextTower, Tower, constants, image_tower, weights
from vlpipe.extract.compute import DTYPE, exact, pixels_to
from vlpipe.extract.contracts import ImageItem, Item, Prepared, TextItem
from vlpipe.extract.output_names import layer_of
from vlpipe.extract.tokens import clip_token_count, clip_tokenizer_digest
from vlpipe.foundation.config import Config
from vlpipe.foundation.devices import pick_device
from vlpipe.foundation.files import canonical_json, write_atomic

CODE = 3  # version: raised when the same model and item would give another row


class OpenClip:
    """Both towers of one model. Raises `VlpipeError` where it cannot be loaded whole."""

    Config: ClassVar[type[Config]] = OpenClipConfig

    def __init__(self, model: str, config: OpenClipConfig) -> None:
        self.config = config
        source = Source(model, config)
        self.model = source.load()
        self.activation, self.notes = source.activation, source.notes
        self.settings = source.settings | {"quick_gelu": source.quick_gelu}
        self.architecture = source.architecture(self.model)
        self.weights = weights(self.model)
        self.constants: Mapping[str, float] = constants(self.model)
        settings = open_clip.model.get_model_preprocess_cfg(self.model)
        self.preprocessing = open_clip.transform.PreprocessCfg(**settings)
        self.transform = open_clip.transform.image_transform_v2(self.preprocessing, is_train=False)
        self.tokenizer = source.tokenizer()
        self.lock = threading.Lock()  # Hugging Face tokenizers inside are not safe in threads
        self.device = pick_device(config.device)
        self.model.to(self.device, DTYPE[config.precision]).eval()
        self.image, self.text = image_tower(self.model), TextTower(self.model)

    def sides(self) -> tuple[Side, ...]:
        """Both."""
        return ("image", "text")

    def identity(self, side: Side) -> Mapping[str, str]:
        """Weights, architecture, activation, preprocessing or tokenizer, precision, kernels, code."""
        common = {
            "weights": self.weights[side],
            "architecture": self.architecture[side],
            "activation": self.activation,
            "precision": self.config.precision,
            "kernels": kernels(self.model.visual) if side == "image" else "default",
            "code": f"open_clip {CODE}",
        }
        if side == "image":
            return common | {"preprocessing": canonical_json(vars(self.preprocessing))}
        text = {
            "tokenizer": clip_tokenizer_digest(self.tokenizer),
            "max_length": str(self.tokenizer.context_length),
        }
        return common | text | {"prompt": self.config.prompt}

    def outputs(self, side: Side) -> Mapping[str, ArraySpec]:
        """pooled, not normalised; of images tokens (in the joint space) and tokens_raw; all layers.

        An image's layers have cls where there is one, mean (over patches) and tokens; a text's have mean (over
        real tokens) and last (the end token).
        """
        return self._outputs[side]

    @cached_property
    def _outputs(self) -> dict[Side, dict[str, ArraySpec]]:
        """The shapes that a blank picture and an empty text give: no configuration tells them for all towers."""
        items: dict[Side, Item] = {"image": ImageItem("", Image.new("RGB", (8, 8))), "text": TextItem("", "")}
        found: dict[Side, dict[str, ArraySpec]] = {}
        self.model.eval()
        for side in self.sides():
            with exact():
                seen = self._see(self.collate([self.prepare(items[side])]).tensors, None)
                named = ("pooled",) if side == "text" else ("pooled", "tokens", "tokens_raw")
                rows = self._rows(seen, named if self.image.joins else tuple(n for n in named if n != "tokens"))
            specs = {name: ArraySpec(tuple(row.shape[1:])) for name, row in rows.items()}
            found[side] = specs | layer_specs(seen.states)
        return found

    def prepare(self, item: Item) -> Prepared:
        """Pixels (3, height, width) by the model's own preprocessing, or token numbers (context,) and how many."""
        if isinstance(item, ImageItem):
            return Prepared({"image": self.transform(item.picture)})
        text = self.config.prompt + item.text
        with self.lock:
            count, cut = clip_token_count(self.tokenizer, text)
            return Prepared({"text": self.tokenizer([text])[0], "length": torch.tensor(count)}, (cut,))

    def collate(self, items: list[Prepared]) -> Prepared:
        """Stack: the tokenizer has padded every text to the context already."""
        names = items[0].tensors
        tensors = {name: torch.stack([item.tensors[name] for item in items]) for name in names}
        return Prepared(tensors, tuple(flag for item in items for flag in item.cut))

    def encode(self, batch: Prepared, outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """The asked outputs in float32, in evaluation mode."""
        self.model.eval()
        with exact():
            return self.run(batch.tensors, outputs)

    def run(self, tensors: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """One pass of a tower for all asked outputs; keeps gradients where they are on."""
        return self._rows(self._see(tensors, {found[0] for found in map(layer_of, outputs) if found}), outputs)

    def tower(self, side: Side, output: str | None = None) -> nn.Module:
        """Prepared tensors in, an output (rows, width) out, by default the pooled embeddings."""
        return Tower(self, side, output or "pooled")

    def save(self, folder: Path, logit_scale: float | None = None) -> None:
        """As the library saves a model for a hub: settings, weights, and the tokenizer where it is not its own."""
        state = {name: tensor.contiguous() for name, tensor in self.model.state_dict().items()}
        if logit_scale is not None:
            state["logit_scale"] = torch.full_like(state["logit_scale"], math.log(logit_scale))
        config = {"model_cfg": self.settings, "preprocess_cfg": vars(self.preprocessing)}
        write_atomic(folder / "open_clip_config.json", json.dumps(config, indent=2).encode())
        write_atomic(folder / "open_clip_model.safetensors", save(state, {"format": "pt"}))
        if hasattr(self.tokenizer, "save_pretrained"):
            self.tokenizer.save_pretrained(folder)

    def saved(self, folder: Path) -> tuple[str, dict[str, Any]]:
        """The folder, which says all but prompt and precision."""
        return str(folder), self.config.model_dump(exclude_defaults=True, include={"prompt", "precision"})

    def _see(self, tensors: Mapping[str, Tensor], layers: Collection[int] | None) -> Seen:
        if "text" in tensors:
            return self.text.run(tensors["text"].to(self.device), tensors["length"].to(self.device), layers)
        return self.image.run(pixels_to(self.device, DTYPE[self.config.precision], tensors["image"]), layers)

    def _rows(self, seen: Seen, outputs: tuple[str, ...]) -> dict[str, Tensor]:
        rows = {}
        for name in outputs:
            if found := layer_of(name):
                rows[name] = seen.states[found[0]].pool(found[1])
            elif name == "pooled":
                rows[name] = seen.pooled.float()
            else:
                read = self.image.joint if name == "tokens" else self.image.raw
                rows[name] = read(seen.features).float()
        return rows
