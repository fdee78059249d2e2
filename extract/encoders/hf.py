"""Models of the transformers library: image towers (DINOv2) and text models (MiniLM, BERT, Llama).

`hf:NAME` is a hub name or a local folder; a local folder is never looked up on a hub, and code that comes with a
checkpoint is never run. The states are those of the library: `cls`, `mean`, ... read `last_hidden_state`, which
is after the model's final norm; `layer_NN` reads `hidden_states[NN]` (0 the embeddings, k after block k), where
DINOv2's last layer is before that norm and that of Llama, GPT-2 or BERT is after it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from PIL import Image
from pydantic import Field
from torch import Tensor, nn

from vlpipe.cache_store.layout import ArraySpec, Side
from vlpipe.extract.compute import DTYPE, Precision, cast, exact, pick_device
from vlpipe.extract.contracts import ImageItem, Item, Prepared
from vlpipe.extract.digest import tensors_digest
from vlpipe.extract.hub import hub_answers
from vlpipe.extract.output_names import layer_name, layer_of, main_output
from vlpipe.extract.tokens import Tokens, longest_text
from vlpipe.foundation.config import Config
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.foundation.files import canonical_json, digest

CODE = 1  # version: raised when the same model and item would give another row
_UNUSED = ("pooler.", "mask_token")  # tensors that no output reads: a checkpoint may lack them
_UNIMPORTANT = (
    "_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "id2label", "label2id",
    "use_cache", "return_dict", "output_hidden_states", "output_attentions", "problem_type",
)  # fmt: skip


class HfConfig(Config):
    """Settings of a transformers model."""

    precision: Precision = "float32"
    attention: Literal["sdpa", "eager"] = "sdpa"
    max_length: int | None = Field(default=None, ge=1)  # tokens with special ones; default: all the model can see
    prompt: str = ""  # put before every text
    device: str = "auto"


class Hf:
    """One image or text model. Raises `VlpipeError` where it cannot be loaded whole."""

    Config: ClassVar[type[Config]] = HfConfig
    constants: Mapping[str, float] = {}

    def __init__(self, model: str, config: HfConfig) -> None:
        self.name, self.config = model, config
        self.source = _source(model)
        self.folder = Path(self.source).is_dir()
        self.local = self.folder or not hub_answers()
        self.model, missing = self._load()
        self.weights = tensors_digest({k: v for k, v in self.model.state_dict().items() if k not in missing})
        cast(self.model, config.precision)
        self.device = pick_device(config.device)
        self.model.to(self.device).eval()
        self.side: Side = self._side()
        if self.side == "image":
            self.processor = self._part("AutoImageProcessor")
        else:
            tokenizer = self._part("AutoTokenizer")
            self.tokens = Tokens(tokenizer, self._limit(tokenizer))

    def sides(self) -> tuple[Side, ...]:
        """The one side that the model reads."""
        return (self.side,)

    def identity(self, side: Side) -> Mapping[str, str]:
        """Weights, architecture, preprocessing or tokenizer, precision, kernels, code."""
        config = {k: v for k, v in self.model.config.to_diff_dict().items() if k not in _UNIMPORTANT}
        common = {
            "weights": self.weights,
            "architecture": digest(json.loads(json.dumps(config, default=str))),
            "precision": self.config.precision,
            "kernels": f"attention {self.config.attention}",
            "code": f"hf {CODE}",
        }
        if side == "image":
            return common | {"preprocessing": canonical_json(json.loads(self.processor.to_json_string()))}
        text = {"tokenizer": self.tokens.identity(), "max_length": str(self.tokens.limit)}
        return common | text | {"prompt": self.config.prompt}

    def outputs(self, side: Side) -> Mapping[str, ArraySpec]:
        """Image: cls, patch_mean, tokens (patches only). Text: mean (of real tokens), cls, last. All by layer."""
        if side != self.side:
            return {}
        config = self.model.config.get_text_config()
        layers = range(config.num_hidden_layers + 1)
        width = int(config.hidden_size)
        shapes: dict[str, tuple[int, ...]]
        if side == "image":
            prefix, patches = self._geometry
            shapes = {"cls": (width,)} if prefix else {}
            shapes |= {"patch_mean": (width,), "tokens": (patches, width)}
            poolings = {name.removeprefix("patch_"): shape for name, shape in shapes.items()}
        else:
            shapes = {"mean": (width,), "last": (width,)}
            if self.tokens.tokenizer.cls_token_id is not None:
                shapes["cls"] = (width,)
            poolings = dict(shapes)
        shapes |= {layer_name(layer, p): shape for layer in layers for p, shape in poolings.items()}
        return {name: ArraySpec(shape) for name, shape in shapes.items()}

    def prepare(self, item: Item) -> Prepared:
        """Pixels (3, height, width) by the model's own processor, or token numbers (tokens,)."""
        if isinstance(item, ImageItem):
            return Prepared({"pixel_values": self._pixels(item.picture)})
        ids, cut = self.tokens.encode(self.config.prompt + item.text)
        if not ids:
            raise VlpipeError(f"text {item.text!r} gives no tokens")
        return Prepared({"input_ids": torch.tensor(ids)}, (cut,))

    def collate(self, items: list[Prepared]) -> Prepared:
        """Texts are padded on the right whatever the tokenizer prefers: positions are then those of one alone."""
        cut = tuple(flag for item in items for flag in item.cut)
        if self.side == "image":
            return Prepared({"pixel_values": torch.stack([item.tensors["pixel_values"] for item in items])}, cut)
        rows = [item.tensors["input_ids"] for item in items]
        real = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self._padding())
        return Prepared({"input_ids": ids, "attention_mask": real}, cut)

    def encode(self, batch: Prepared, outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """The asked outputs in float32, in evaluation mode."""
        self.model.eval()
        with exact():
            return self.run(batch.tensors, outputs)

    def run(self, tensors: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """The model's pass and what is read from its states; keeps gradients where they are on."""
        inputs = {name: tensor.to(self.device) for name, tensor in tensors.items()}
        if self.side == "image":
            inputs["pixel_values"] = inputs["pixel_values"].to(DTYPE[self.config.precision])
        result = self.model(**inputs, output_hidden_states=any(layer_of(name) for name in outputs))
        rows = {}
        for name in outputs:
            layer, pooling = layer_of(name) or (None, name)
            state = result.last_hidden_state if layer is None else result.hidden_states[layer]
            rows[name] = self._pool(state.float(), pooling, inputs.get("attention_mask"))
        return rows

    def tower(self, side: Side) -> nn.Module:
        """Prepared tensors in, the main output (rows, width) out."""
        return _Tower(self, main_output(self.outputs(side)))

    def _pool(self, state: Tensor, pooling: str, mask: Tensor | None) -> Tensor:
        if pooling == "cls":
            return state[:, 0]
        if mask is None:
            patches = state[:, self._geometry[0] :]
            return patches if pooling == "tokens" else patches.mean(1)
        if pooling == "last":
            return state[torch.arange(len(state), device=state.device), mask.sum(1) - 1]
        return (state * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)

    def _pixels(self, picture: Image.Image) -> Tensor:
        pixels: Tensor = self.processor(picture, return_tensors="pt")["pixel_values"][0]
        return pixels

    @cached_property
    def _geometry(self) -> tuple[int, int]:
        """Tokens before the patches (class, registers) and patches, as the model gives them for its own size."""
        pixels = self._pixels(Image.new("RGB", (256, 256)))
        with exact():
            inputs = pixels[None].to(self.device, DTYPE[self.config.precision])
            state = self.model(pixel_values=inputs).last_hidden_state
        size = getattr(self.model.config, "patch_size", None)
        if state.ndim != 3 or not isinstance(size, int):
            raise VlpipeError(f"hf:{self.name} gives maps of shape {tuple(state.shape)}, not one token a patch")
        patches = (pixels.shape[1] // size) * (pixels.shape[2] // size)
        prefix = state.shape[1] - patches
        known = 1 + getattr(self.model.config, "num_register_tokens", 0)
        if prefix not in (0, 1, known):
            raise VlpipeError(
                f"hf:{self.name} gives {state.shape[1]} tokens for {patches} patches: unknown geometry"
            )
        return prefix, patches

    def _padding(self) -> int:
        """The number that fills up a row; masked, so for models without a padding token any will do."""
        known = (self.tokens.tokenizer.pad_token_id, self.model.config.get_text_config().pad_token_id)
        return next((number for number in known if number is not None and number >= 0), 0)

    def _limit(self, tokenizer: Any) -> int:
        positions = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        table = getattr(getattr(self.model, "embeddings", None), "position_embeddings", None)
        padding = getattr(table, "padding_idx", None)
        if positions and padding is not None:
            positions -= padding + 1  # RoBERTa counts from behind its padding number
        known = (tokenizer.model_max_length, positions, self._sentence_limit())
        special = tokenizer.num_special_tokens_to_add()
        return longest_text(f"hf:{self.name}", known, special, self.config.max_length)

    def _sentence_limit(self) -> int | None:
        """What a sentence-transformers folder says of its longest text."""
        from transformers.utils.hub import cached_file

        path = cached_file(
            self.source, "sentence_bert_config.json", local_files_only=self.local,
            _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False,
        )  # fmt: skip
        limit = json.loads(Path(path).read_text(encoding="utf-8")).get("max_seq_length") if path else None
        return limit if isinstance(limit, int) else None

    def _load(self) -> tuple[Any, set[str]]:
        model, info = self._part(
            "AutoModel", dtype=torch.float32, attn_implementation=self.config.attention, weights_only=True,
            output_loading_info=True,
        )  # fmt: skip
        missing = set(info["missing_keys"])
        needed = sorted(key for key in missing if not any(part in key for part in _UNUSED))
        if needed:
            raise VlpipeError(
                f"hf:{self.name}: the checkpoint lacks {len(needed)} tensors that the model needs, first "
                f"'{needed[0]}'; random weights are never extracted"
            )
        return (model.get_encoder() if model.config.is_encoder_decoder else model), missing

    def _part(self, kind: str, **options: Any) -> Any:
        import transformers

        try:
            with _quiet():
                loader = getattr(transformers, kind)
                return loader.from_pretrained(
                    self.source, local_files_only=self.local, trust_remote_code=False, **options
                )
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            where = "this folder" if self.folder else "the hub or its local cache; a local folder works offline"
            reason = " ".join(str(error).split())[:300]
            raise VlpipeError(f"hf:{self.name}: {kind} cannot be loaded from {where}: {reason}") from None

    def _side(self) -> Side:
        reads = self.model.main_input_name
        both = reads == "input_ids" and hasattr(self.model.config, "vision_config")
        if both or reads not in ("pixel_values", "input_ids"):
            raise VlpipeError(f"hf:{self.name} reads '{reads}'; expected an image model or a text model")
        return "image" if reads == "pixel_values" else "text"


class _Tower(nn.Module):
    """A model with its main output as the one result, for training."""

    def __init__(self, encoder: Hf, output: str) -> None:
        super().__init__()
        self.model = encoder.model
        self.read = encoder.run
        self.output = output

    def forward(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """(rows, width) of prepared tensors."""
        return self.read(tensors, (self.output,))[self.output]


@contextmanager
def _quiet() -> Iterator[None]:
    """What the library reports while loading is checked here; bars only where someone looks."""
    from transformers.utils import logging

    talk: Any = logging
    before = talk.get_verbosity()
    talk.set_verbosity_error()
    if not sys.stderr.isatty():
        talk.disable_progress_bar()
    try:
        yield
    finally:
        talk.set_verbosity(before)


def _source(model: str) -> str:
    """A local path in full, or a hub name as it is."""
    if not model:
        raise UsageError("encoder 'hf' needs a model: hf:NAME or hf:FOLDER, for example hf:facebook/dinov2-small")
    path = Path(model).expanduser()
    if path.is_dir():
        return str(path)
    if model.startswith(("/", "./", "../", "~")) or path.exists():
        raise VlpipeError(f"hf:{model}: there is no such folder; expected one with config.json and weights")
    return model
