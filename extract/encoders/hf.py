"""Models of the transformers library: pictures (DINOv2, MAE, Swin), texts (Llama, BERT), and both (CLIP, SigLIP).

`hf:NAME` is a hub name or a local folder; a local folder is never looked up on a hub, and code that comes with a
checkpoint is never run. The states are those of the library: `cls`, `mean`, ... read `last_hidden_state`;
`layer_NN` reads `hidden_states[NN]` (0 the embeddings, k after block or stage k). The last state is after the
model's final norm, but for CLIP's pictures; the last layer is before it in DINOv2, ViT, CLIP and SigLIP, and after
it in Llama, Gemma, GPT-2 and BERT.
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
from pydantic import Field
from torch import Tensor, nn

from vlpipe.cache_store.layout import ArraySpec, Side
from vlpipe.extract.compute import DTYPE, Precision, cast, exact
from vlpipe.extract.contracts import ImageItem, Item, Prepared
from vlpipe.extract.digest import tensors_digest
from vlpipe.extract.hf_pictures import HfPictures
from vlpipe.extract.hf_saving import copy_small_files, save_whole
from vlpipe.extract.hf_states import Tower
from vlpipe.extract.hf_texts import HfTexts
from vlpipe.extract.hub import hub_answers
from vlpipe.extract.output_names import main_output
from vlpipe.foundation.config import Config
from vlpipe.foundation.devices import pick_device
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.foundation.files import digest

CODE = 3  # version: raised when the same model and item would give another row
_SIDE: Mapping[Side, tuple[str, ...]] = {"image": ("vision", "visual"), "text": ("text",)}  # parts of two towers
_UNUSED = ("pooler.", "mask_token")  # tensors that no output reads: a checkpoint may lack them
_UNIMPORTANT = (
    "_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "id2label", "label2id",
    "use_cache", "return_dict", "output_hidden_states", "output_attentions", "problem_type",
)  # fmt: skip


class HfConfig(Config):
    """Settings of a transformers model."""

    precision: Precision = "float32"
    attention: Literal["auto", "sdpa", "eager"] = "auto"  # auto: sdpa, or eager for models without it (Gemma 2)
    max_length: int | None = Field(default=None, ge=1)  # tokens with special ones; default: all the model can see
    prompt: str = ""  # put before every text
    device: str = "auto"


class Hf:
    """A model of one side or of two. Raises `VlpipeError` where it cannot be loaded whole."""

    Config: ClassVar[type[Config]] = HfConfig

    def __init__(self, model: str, config: HfConfig) -> None:
        self.name, self.config = model, config
        self.source = _source(model)
        self.folder = Path(self.source).is_dir()
        self.local = self.folder or not hub_answers()
        self.model, self.missing = self._load()
        self.two = hasattr(self.model, "get_image_features") and hasattr(self.model, "get_text_features")
        if not self.two and self.model.main_input_name not in ("pixel_values", "input_ids"):
            raise VlpipeError(f"hf:{model} reads '{self.model.main_input_name}'; expected pictures or texts")
        self.weights: dict[Side, str] = {side: tensors_digest(self._state(side)) for side in self.sides()}
        self.constants: Mapping[str, float] = _constants(self.model)
        cast(self.model, config.precision)
        self.device = pick_device(config.device)
        self.model.to(self.device).eval()
        if not self.two:  # of two, one may be used where the other's processor or tokenizer cannot be
            _ = self.pictures if self.sides() == ("image",) else self.texts

    def sides(self) -> tuple[Side, ...]:
        """The sides that the model reads."""
        if self.two:
            return ("image", "text")
        return ("image",) if self.model.main_input_name == "pixel_values" else ("text",)

    def identity(self, side: Side) -> Mapping[str, str]:
        """Weights, architecture, preprocessing or tokenizer, precision, kernels, code."""
        part = self.pictures if side == "image" else self.texts
        config = {k: v for k, v in part.tower.config.to_diff_dict().items() if k not in _UNIMPORTANT}
        common = {
            "weights": self.weights[side],
            "architecture": digest(json.loads(json.dumps(config, default=str))),
            "precision": self.config.precision,
            "kernels": f"attention {part.tower.config._attn_implementation}",
            "code": f"hf {CODE}",
        }
        return common | part.identity()

    def outputs(self, side: Side) -> Mapping[str, ArraySpec]:
        """Image: pooled or pooler, cls, patch_mean, tokens. Text: pooled or pooler, mean, last, cls. By layer too.

        `pooled` is the vector in the space that both sides share, `pooler` the pooled vector of a model of one
        side; means are over patches or real tokens, `last` is the last real token. None has unit length. CLIP and
        SigLIP have `tokens_joint`, too: their patches in the shared space.
        """
        if side not in self.sides():
            return {}
        return self.pictures.outputs if side == "image" else self.texts.outputs

    def prepare(self, item: Item) -> Prepared:
        """Pixels by the model's own processor, or token numbers (tokens,)."""
        return (
            self.pictures.prepare(item.picture) if isinstance(item, ImageItem) else self.texts.prepare(item.text)
        )

    def collate(self, items: list[Prepared]) -> Prepared:
        """Pictures stacked, texts padded."""
        cut = tuple(flag for item in items for flag in item.cut)
        names = items[0].tensors
        if "input_ids" in names:
            return Prepared(self.texts.collate([item.tensors["input_ids"] for item in items]), cut)
        return Prepared({name: torch.stack([item.tensors[name] for item in items]) for name in names}, cut)

    def encode(self, batch: Prepared, outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """The asked outputs in float32, in evaluation mode."""
        self.model.eval()
        with exact():
            return self.run(batch.tensors, outputs)

    def run(self, tensors: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """The model's pass and what is read from its states; keeps gradients where they are on."""
        part = self.texts if "input_ids" in tensors else self.pictures
        return part.run(tensors, outputs)

    def tower(self, side: Side, output: str | None = None) -> nn.Module:
        """Prepared tensors in, an output (rows, width) out, by default the main one."""
        modules = (self.pictures if side == "image" else self.texts).tower.modules
        return _Trained(modules, self.run, output or main_output(self.outputs(side)))

    def save(self, folder: Path, logit_scale: float | None = None) -> None:
        """As the library saves a model, in float32, beside the other small files of where it came from."""
        whole, info = self._whole()
        self._place(whole)[1].load_state_dict(self.model.state_dict())
        with _quiet():
            save_whole(whole, info["missing_keys"], folder, logit_scale)
        if config := self._file("config.json"):
            copy_small_files(config.parent, folder)

    def saved(self, folder: Path) -> tuple[str, dict[str, Any]]:
        """The folder, with the settings that it was trained with."""
        return str(folder), self.config.model_dump(exclude_defaults=True, exclude={"device"})

    @cached_property
    def pictures(self) -> HfPictures:
        """The picture side; its processor is read when it is first asked for."""
        return HfPictures(f"hf:{self.name}", self._tower("image"), self._part("AutoImageProcessor"))

    @cached_property
    def texts(self) -> HfTexts:
        """The text side; its tokenizer is read when it is first asked for. Raises `UsageError`."""
        return HfTexts(
            f"hf:{self.name}", self._tower("text"), self._part("AutoTokenizer"),
            stated=self._sentence_limit(), asked=self.config.max_length, prompt=self.config.prompt,
        )  # fmt: skip

    def _tower(self, side: Side) -> Tower:
        dtype = DTYPE[self.config.precision]
        if not self.two:
            head = None if any("pooler." in key for key in self.missing) else "pooler"
            whole = nn.ModuleList([self.model])
            return Tower(self.model, whole, self.model.config, head, self.device, dtype)
        prefix, call = _SIDE[side], getattr(self.model, f"get_{side}_features")
        modules = nn.ModuleList(child for name, child in self.model.named_children() if name.startswith(prefix))
        config = getattr(self.model.config, "vision_config" if side == "image" else "text_config")
        return Tower(call, modules, config, "pooled", self.device, dtype)

    def _state(self, side: Side) -> dict[str, Tensor]:
        """The tensors that a side's rows come from: another text tower does not make cached images stale."""
        other = _SIDE["text" if side == "image" else "image"]
        skip = ("logit_", *other) if self.two else ()
        state = self.model.state_dict()
        return {k: v for k, v in state.items() if k not in self.missing and not k.startswith(skip)}

    def _sentence_limit(self) -> int | None:
        """What a sentence-transformers folder says of its longest text."""
        path = self._file("sentence_bert_config.json")
        limit = json.loads(path.read_text(encoding="utf-8")).get("max_seq_length") if path else None
        return limit if isinstance(limit, int) else None

    def _file(self, name: str) -> Path | None:
        """Where one of the model's files lies on this machine; None where there is none."""
        from transformers.utils.hub import cached_file

        path = cached_file(
            self.source, name, local_files_only=self.local,
            _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False,
        )  # fmt: skip
        return Path(path) if path else None

    def _load(self) -> tuple[Any, set[str]]:
        """The model, or the part of it that reads texts, in float32; and the tensors that its checkpoint lacks."""
        whole, info = self._whole()
        within, model = self._place(whole)
        missing = {key.removeprefix(within) for key in info["missing_keys"] if key.startswith(within)}
        needed = sorted(key for key in missing if not any(part in key for part in _UNUSED))
        if needed:
            raise VlpipeError(
                f"hf:{self.name}: the checkpoint lacks {len(needed)} tensors that the model needs, first "
                f"'{needed[0]}'; random weights are never extracted"
            )
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if name in missing:
                    tensor.zero_()  # not read, but kept by training: the same in every run
        return model, missing

    def _whole(self) -> tuple[Any, dict[str, Any]]:
        """All of the checkpoint in float32, and what the library says of loading it."""
        options = {} if self.config.attention == "auto" else {"attn_implementation": self.config.attention}
        found: tuple[Any, dict[str, Any]] = self._part(
            "AutoModel", dtype=torch.float32, weights_only=True, output_loading_info=True, **options
        )
        return found

    @staticmethod
    def _place(whole: Any) -> tuple[str, Any]:
        """The part of a model that is read, and what its tensors' names begin with."""
        texts = getattr(whole, "language_model", whole)  # of a model that also sees (Gemma 3)
        model = whole.get_encoder() if whole.config.is_encoder_decoder else texts
        place = next(name for name, module in whole.named_modules() if module is model)
        return f"{place}." if place else "", model

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


class _Trained(nn.Module):
    """One side with its main output as the one result, for training. The parameters are the model's own."""

    def __init__(self, modules: nn.ModuleList, read: Any, output: str) -> None:
        super().__init__()
        self.parts, self.read, self.output = modules, read, output

    def forward(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """(rows, width) of prepared tensors."""
        rows: Tensor = self.read(tensors, (self.output,))[self.output]
        return rows


def _constants(model: Any) -> dict[str, float]:
    found = {}
    if isinstance(scale := getattr(model, "logit_scale", None), Tensor):
        found["logit_scale"] = float(scale.detach().exp())
    if isinstance(bias := getattr(model, "logit_bias", None), Tensor):
        found["logit_bias"] = float(bias.detach())
    return found


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
