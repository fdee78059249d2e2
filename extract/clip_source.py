"""Where a model of open_clip comes from: its settings, weights, activation, preprocessing and tokenizer."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import open_clip
import torch

from vlpipe.cache_store.layout import Side
from vlpipe.extract.compute import Precision
from vlpipe.extract.hub import guarded, hub_answers
from vlpipe.foundation.config import Config
from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError
from vlpipe.foundation.files import canonical_json, digest

PICTURES = ("mean", "std", "interpolation", "resize_mode")
_FORMS: Mapping[Side, tuple[str, Any]] = {
    "image": ("vision_cfg", open_clip.CLIPVisionCfg),
    "text": ("text_cfg", open_clip.CLIPTextCfg),
}
# Of no weight for a row, or told apart by another field.
_UNREAD = {
    "timm_model_pretrained", "timm_drop", "timm_drop_path", "patch_dropout", "output_tokens", "context_length",
    "hf_model_name", "hf_model_pretrained", "hf_tokenizer_name", "tokenizer_kwargs",
}  # fmt: skip
_UNIMPORTANT = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures")


class OpenClipConfig(Config):
    """Settings of an open_clip model."""

    precision: Precision = "float32"  # others: the library's pure_bf16 and pure_fp16
    prompt: str = ""  # put before every text
    quick_gelu: bool | None = None  # default: what the tag or the configuration says
    random_init: bool = False  # seeded random weights, for tests only
    seed: int = 0
    device: str = "auto"


class Source:
    """What a spec's model part names: where settings, weights and tokenizer come from."""

    def __init__(self, model: str, config: OpenClipConfig) -> None:
        if not model:
            raise UsageError(
                "encoder 'open_clip' needs a model: open_clip:MODEL@PRETRAINED, or a JSON configuration"
            )
        self.spec, self.config = f"open_clip:{model}", config
        self.notes: list[str] = []
        given, _, self.pretrained = model.partition("@")
        self.preprocessing: dict[str, Any] | None = None
        self.name = self._name(given)
        self.complete = self.name.startswith(("local-dir:", "hf-hub:"))
        self.offline = self.name.startswith("hf-hub:") and not hub_answers()
        self.settings = self._guarded(open_clip.get_model_config, self.name)
        self._check_pretrained()
        self.offline = self.offline or (self._asks_hub() and not hub_answers())
        self.quick_gelu = self._quick_gelu()
        self.activation = "quick_gelu" if self.quick_gelu else "gelu"

    def load(self) -> Any:
        """The model with its weights, in float32 on the CPU."""
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.filterwarnings("ignore", "QuickGELU mismatch")  # settled by `quick_gelu` below
            torch.manual_seed(self.config.seed)
            return self._guarded(
                open_clip.create_model,
                self.name,
                pretrained=self.pretrained or None,
                precision="fp32",
                force_preprocess_cfg=self.preprocessing,
                pretrained_text=False,
                require_pretrained=not self.config.random_init,
                weights_only=True,
                quick_gelu=self.quick_gelu,
            )

    def architecture(self, model: Any) -> dict[Side, str]:
        """A digest a side: what its configuration makes other than the library's default, not where parts lie."""
        found = {side: self._part(name, form) for side, (name, form) in _FORMS.items()}
        if inner := getattr(getattr(model, "text", None), "config", None):  # a model of transformers
            own = {name: value for name, value in inner.to_diff_dict().items() if name not in _UNIMPORTANT}
            found["text"] = digest([found["text"], json.loads(json.dumps(own, default=str))])
        return found

    def _part(self, name: str, form: Any) -> str:
        given, default = asdict(form(**self.settings[name])), asdict(form())
        other = {n: value for n, value in given.items() if n not in _UNREAD and value != default[n]}
        return digest([self.settings["embed_dim"], other])

    def tokenizer(self) -> Any:
        """The model's own tokenizer, with its context length."""
        return self._guarded(open_clip.get_tokenizer, self.name)

    def _name(self, given: str) -> str:
        path = Path(given).expanduser()
        if given.startswith(("hf-hub:", "local-dir:")):
            return given
        if path.is_dir():
            return f"local-dir:{path}"
        if path.suffix == ".json":
            return self._registered(path)
        known = open_clip.list_models()
        if given not in known:
            raise UnknownNameError("open_clip model", given, get_close_matches(given, known, n=5, cutoff=0))
        return given

    def _registered(self, path: Path) -> str:
        """A JSON configuration under a name of its content, so that two files of one name do not mix."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise VlpipeError(f"configuration '{path}' cannot be read: {error}") from None
        settings = found.get("model_cfg", found) if isinstance(found, dict) else {}
        if missing := {"embed_dim", "vision_cfg", "text_cfg"} - set(settings):
            raise VlpipeError(
                f"configuration '{path}' lacks {', '.join(sorted(missing))}; expected open_clip's form"
            )
        self.preprocessing = found.get("preprocess_cfg")
        name = f"vlpipe-{digest(settings)[:16]}"  # not the file's name: open_clip reads tokenizers out of names
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{name}.json"
            file.write_text(json.dumps(settings), encoding="utf-8")
            open_clip.add_model_config(file)
        return name

    def _check_pretrained(self) -> None:
        if self.complete or self.config.random_init:
            if self.pretrained:
                raise UsageError(f"'{self.spec}': no checkpoint goes with a folder, a hub name or random_init")
            return
        tags = open_clip.list_pretrained_tags_by_model(self.name)
        if not self.pretrained:
            near = f" or one of its tags: {', '.join(tags)}" if tags else ""
            raise VlpipeError(f"'{self.spec}' names no weights; add @CHECKPOINT, a file{near}")
        path = Path(self.pretrained).expanduser()
        if path.is_file():
            self.pretrained = str(path)
            self.preprocessing = self.preprocessing or self._file_preprocessing(tags)
        elif "/" in self.pretrained or path.suffix:
            raise VlpipeError(f"'{self.spec}': there is no checkpoint file '{self.pretrained}'")
        elif self.pretrained not in tags:
            raise UnknownNameError(f"pretrained tag of {self.name}", self.pretrained, tags)

    def _asks_hub(self) -> bool:
        """Whether weights, or parts of transformers inside the text side, are looked up by a name of the hub."""
        text = self.settings["text_cfg"]
        inner = [text.get("hf_model_name"), None if self.complete else text.get("hf_tokenizer_name")]
        tag = bool(self.pretrained) and not Path(self.pretrained).is_file()
        return tag or any(name and not Path(name).is_dir() for name in inner)

    def _file_preprocessing(self, tags: list[str]) -> dict[str, Any]:
        """How pictures are prepared for a checkpoint file of a named model: as for the tags that the model has.

        Without this SigLIP's weights would get OpenAI's mean and std. Where tags differ the first one stands, and
        a note says so.
        """
        known = {tag: open_clip.get_pretrained_cfg(self.name, tag) for tag in tags}
        ways = {tag: {name: found[name] for name in PICTURES if name in found} for tag, found in known.items()}
        first = next(iter(ways), None)
        if first and len({canonical_json(way) for way in ways.values()}) > 1:
            self.notes.append(
                f"{self.spec}: a checkpoint file does not say how pictures are prepared; taken as for @{first}. "
                "For another way give the model as a JSON configuration with a preprocess_cfg"
            )
        return ways.get(first or "", {})

    def _quick_gelu(self) -> bool:
        """A tag knows the activation that its weights were trained with; else the configuration says it."""
        says = bool(self.settings.get("quick_gelu", False))
        tag = open_clip.get_pretrained_cfg(self.name, self.pretrained) if self.pretrained else {}
        if tag:
            says = bool(tag.get("quick_gelu", False))
        if self.config.quick_gelu is not None:
            if tag and self.config.quick_gelu != says:
                raise UsageError(f"setting 'quick_gelu': '{self.pretrained}' was trained with quick_gelu={says}")
            return self.config.quick_gelu
        if self.pretrained and not tag and f"{self.name}-quickgelu" in open_clip.list_models():
            self.notes.append(
                f"{self.spec}: a checkpoint file does not say its activation; taken as plain GELU. For weights of "
                f"OpenAI, MetaCLIP or DFN name {self.name}-quickgelu, or add --set quick_gelu=true"
            )
        return says

    def _guarded(self, call: Any, *given: Any, **options: Any) -> Any:
        hint = "without a network give a local checkpoint, open_clip:MODEL@FILE, or a folder"
        return guarded(self.spec, hint, self.offline, call, *given, **options)
