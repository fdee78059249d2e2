"""Models of the open_clip library: `open_clip:MODEL[@PRETRAINED]`.

MODEL is a name of the library (ViT-B-16), a JSON configuration (a file: the model's settings, or a whole
`open_clip_config.json`), a local folder with an `open_clip_config.json`, or `hf-hub:NAME`. PRETRAINED is a tag of
the library (laion2b_s34b_b88k) or a checkpoint file; folders and hub names bring their own.
"""

from __future__ import annotations

import json
import logging
import tempfile
import threading
import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

import open_clip
import torch
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn

from vlpipe.cache_store.layout import ArraySpec, Side
from vlpipe.extract.compute import DTYPE, Precision, exact, pick_device
from vlpipe.extract.contracts import ImageItem, Item, Prepared
from vlpipe.extract.digest import tensors_digest
from vlpipe.extract.tokens import clip_tokenizer_digest, is_cut
from vlpipe.foundation.config import Config
from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError
from vlpipe.foundation.files import canonical_json, digest

CODE = 1  # version: raised when the same model and item would give another row


class OpenClipConfig(Config):
    """Settings of an open_clip model."""

    precision: Precision = "float32"  # others: the library's pure_bf16 and pure_fp16
    prompt: str = ""  # put before every text
    quick_gelu: bool | None = None  # default: what the tag or the configuration says
    random_init: bool = False  # seeded random weights, for tests only
    seed: int = 0
    device: str = "auto"


class OpenClip:
    """Both towers of one model. Raises `VlpipeError` where it cannot be loaded whole."""

    Config: ClassVar[type[Config]] = OpenClipConfig

    def __init__(self, model: str, config: OpenClipConfig) -> None:
        self.config = config
        source = Source(model, config)
        self.model = source.load()
        self.activation, self.notes = source.activation, source.notes
        self.architecture, self.width = digest(source.settings), int(source.settings["embed_dim"])
        self.weights = _weights(self.model)
        self.constants: Mapping[str, float] = _constants(self.model)
        settings = open_clip.model.get_model_preprocess_cfg(self.model)
        self.preprocessing = open_clip.transform.PreprocessCfg(**settings)
        self.transform = open_clip.transform.image_transform_v2(self.preprocessing, is_train=False)
        self.tokenizer = source.tokenizer()
        self.lock = threading.Lock()  # Hugging Face tokenizers inside are not safe in threads
        self.device = pick_device(config.device)
        self.model.to(self.device, DTYPE[config.precision]).eval()

    def sides(self) -> tuple[Side, ...]:
        """Both."""
        return ("image", "text")

    def identity(self, side: Side) -> Mapping[str, str]:
        """Weights, architecture, activation, preprocessing or tokenizer, precision, code."""
        common = {
            "weights": self.weights[side],
            "architecture": self.architecture,
            "activation": self.activation,
            "precision": self.config.precision,
            "kernels": "default",
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
        """Image: pooled, and tokens where the tower is the library's ViT. Text: pooled. Raw, not normalised."""
        if side == "text":
            return {"pooled": ArraySpec((self.width,))}
        tower = self.model.visual
        specs = {"pooled": ArraySpec((self.width,))}
        # With an attentional pooler the tokens that come out are its queries, and no longer patches.
        if isinstance(tower, VisionTransformer) and tower.attn_pool is None:
            specs["tokens"] = ArraySpec((tower.grid_size[0] * tower.grid_size[1], self.width))
        return specs

    def prepare(self, item: Item) -> Prepared:
        """Pixels (3, height, width) by the model's own preprocessing, or token numbers (context,)."""
        if isinstance(item, ImageItem):
            return Prepared({"image": self.transform(item.picture)})
        text = self.config.prompt + item.text
        with self.lock:
            return Prepared({"text": self.tokenizer([text])[0]}, (is_cut(self.tokenizer, text),))

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
        """The tower's pass; keeps gradients where they are on."""
        if "text" in tensors:
            return {"pooled": self.model.encode_text(tensors["text"].to(self.device), normalize=False).float()}
        pixels = tensors["image"].to(self.device, DTYPE[self.config.precision])
        if outputs == ("pooled",):
            return {"pooled": self.model.encode_image(pixels, normalize=False).float()}
        tower = self.model.visual
        states = tower.forward_intermediates(pixels, indices=1, normalize_intermediates=True, output_fmt="NLC")
        tokens = states["image_intermediates"][-1]  # (rows, patches, width), after the final norm
        joint = tokens if tower.proj is None else tokens @ tower.proj
        rows = {"pooled": states["image_features"].float(), "tokens": joint.float()}
        return {name: rows[name] for name in outputs}

    def tower(self, side: Side) -> nn.Module:
        """Prepared tensors in, pooled embeddings (rows, width) out."""
        return _Tower(self, "visual" if side == "image" else "text")


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
        self.settings = self._guarded(open_clip.get_model_config, self.name)
        self._check_pretrained()
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
        elif "/" in self.pretrained or path.suffix:
            raise VlpipeError(f"'{self.spec}': there is no checkpoint file '{self.pretrained}'")
        elif self.pretrained not in tags:
            raise UnknownNameError(f"pretrained tag of {self.name}", self.pretrained, tags)

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
        logging.disable(logging.CRITICAL)  # what the library logs is said again by what it raises
        try:
            return call(*given, **options)
        except Exception as error:  # the library and the hub raise of every kind
            reason = " ".join(str(error).split())[:300]
            raise VlpipeError(
                f"'{self.spec}' cannot be loaded: {type(error).__name__}: {reason}; without a network give a "
                "local checkpoint, open_clip:MODEL@FILE, or a folder"
            ) from None
        finally:
            logging.disable(logging.NOTSET)


class _Tower(nn.Module):
    """One side of a model, for training. The parameters are the model's own."""

    def __init__(self, encoder: OpenClip, part: str) -> None:
        super().__init__()
        self.model = encoder.model if part == "text" else encoder.model.visual
        self.read = encoder.run

    def forward(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """(rows, width) of prepared tensors."""
        return self.read(tensors, ("pooled",))["pooled"]


def _weights(model: Any) -> dict[Side, str]:
    """A digest a side: another text tower does not make cached images stale."""
    unread = ("logit_", "text_decoder.")  # the constants, and CoCa's captioner
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(unread)}
    image = {name: tensor for name, tensor in state.items() if name.startswith("visual.")}
    text = {name: tensor for name, tensor in state.items() if name not in image}
    return {"image": tensors_digest(image), "text": tensors_digest(text)}


def _constants(model: Any) -> dict[str, float]:
    constants = {"logit_scale": float(model.logit_scale.detach().exp())}
    if model.logit_bias is not None:
        constants["logit_bias"] = float(model.logit_bias.detach())
    return constants
