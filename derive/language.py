"""The one interface to language models, and a local folder of the transformers library behind it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from vlpipe.derive.memory import Memory
from vlpipe.extract.compute import exact
from vlpipe.foundation.devices import pick_device
from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.files import digest, file_digest

CODE = 1  # version: raised when the same model and prompt would give another answer
TEMPERATURE = 0.7
TOP_P = 0.9
READ = (".safetensors", ".bin", ".json", ".model", ".txt", ".jinja")  # what decides a folder's answers


class LanguageModel(Protocol):
    """Text in, text out. The answer to a prompt depends on the model, the seed and the prompt."""

    @property
    def identity(self) -> str:
        """What decides the answers, besides prompt, seed and length; never a path or a machine."""
        ...

    def complete(self, prompts: Sequence[str], seed: int | None, max_tokens: int) -> list[str]:
        """An answer a prompt, in order, of at most `max_tokens` tokens; seed None takes the likeliest tokens."""
        ...


class LocalModel:
    """A causal model in a local folder, as the transformers library saves it; loaded when first asked.

    Nothing is looked up on a hub, and code that comes with a checkpoint is never run. Raises `VlpipeError` for a
    folder that is no such model, or a checkpoint that lacks weights.
    """

    def __init__(self, folder: Path, device: str = "auto", batch_size: int = 8) -> None:
        if not (folder / "config.json").is_file():
            what = "has no config.json" if folder.is_dir() else "does not exist"
            raise VlpipeError(
                f"language model '{folder}' {what}; expected a folder with a model and its tokenizer"
            )
        self.folder = folder
        self.device = pick_device(device)
        self.batch_size = batch_size

    @cached_property
    def identity(self) -> str:
        """Digest of the folder's files, so that a second run need not load them."""
        files = sorted(path for path in self.folder.iterdir() if path.suffix in READ)
        return digest([f"local {CODE}", TEMPERATURE, TOP_P, *([path.name, file_digest(path)] for path in files)])

    def complete(self, prompts: Sequence[str], seed: int | None, max_tokens: int) -> list[str]:
        """Answers, `batch_size` prompts at a time. With a seed tokens are drawn at temperature 0.7 among the
        likeliest that sum to 0.9, from a stream of random numbers of each prompt's own.
        """
        answers: list[str] = []
        for start in range(0, len(prompts), self.batch_size):
            answers += self._complete(prompts[start : start + self.batch_size], seed, max_tokens)
        return answers

    def _complete(self, prompts: Sequence[str], seed: int | None, max_tokens: int) -> list[str]:
        tokenizer, model = self._loaded
        chat = bool(getattr(tokenizer, "chat_template", None))
        texts = [_chat(tokenizer, prompt) for prompt in prompts] if chat else list(prompts)
        batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=not chat)
        batch = {name: batch[name].to(self.device) for name in ("input_ids", "attention_mask")}
        with exact():
            ids = model.generate(
                **batch, max_new_tokens=max_tokens, do_sample=False, num_beams=1,
                temperature=None, top_p=None, top_k=None, pad_token_id=tokenizer.pad_token_id,
                logits_processor=[] if seed is None else _sampling(texts, seed),
            )  # fmt: skip
        answers: list[str] = tokenizer.batch_decode(
            ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
        )
        return answers

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        import transformers

        library: Any = transformers
        library.utils.logging.set_verbosity_error()  # what it would report is checked here
        if not sys.stderr.isatty():
            library.utils.logging.disable_progress_bar()
        where = {"local_files_only": True, "trust_remote_code": False}
        try:
            tokenizer = library.AutoTokenizer.from_pretrained(self.folder, padding_side="left", **where)
            model, info = library.AutoModelForCausalLM.from_pretrained(
                self.folder, dtype="auto", weights_only=True, output_loading_info=True, **where
            )
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise VlpipeError(f"language model '{self.folder}' cannot be loaded: {reason}") from None
        if info["missing_keys"]:
            raise VlpipeError(
                f"language model '{self.folder}' lacks {len(info['missing_keys'])} tensors, first "
                f"'{min(info['missing_keys'])}'; random weights are never asked"
            )
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer, model.to(self.device).eval()


class Remembered:
    """A model whose answers are kept: what was asked once, with the same seed and length, is never asked again."""

    def __init__(self, model: LanguageModel, memory: Memory, at_once: int = 64) -> None:
        self.model = model
        self.memory = memory
        self.at_once = at_once  # prompts between two writes
        self.asked = 0  # prompts that the model itself got

    @property
    def identity(self) -> str:
        """The model's own."""
        return self.model.identity

    def complete(self, prompts: Sequence[str], seed: int | None, max_tokens: int) -> list[str]:
        """As the model would; equal prompts are asked once."""
        keys = [digest(["answer", self.identity, prompt, seed, max_tokens]) for prompt in prompts]
        known = self.memory.get(keys)
        missing = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in known}
        names = list(missing)
        for start in range(0, len(names), self.at_once):
            part = names[start : start + self.at_once]
            self.asked += len(part)
            answers = self.model.complete([missing[key] for key in part], seed, max_tokens)
            found = dict(zip(part, answers, strict=True))
            self.memory.put(found)
            known |= found
        return [known[key] for key in keys]


class _OwnNoise:
    """Gumbel noise on the logits: the largest is then a draw from the softmax, whoever else is in the batch."""

    def __init__(self, texts: Sequence[str], seed: int) -> None:
        self.streams = [torch.Generator().manual_seed(_seed(text, seed)) for text in texts]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """(rows, vocabulary) logits, noisy."""
        uniform = torch.stack([torch.rand(scores.shape[1], generator=stream) for stream in self.streams])
        noise = -(-uniform.clamp_min(1e-20).log()).clamp_min(1e-20).log()
        return scores.float() + noise.to(scores.device)


def _sampling(texts: Sequence[str], seed: int) -> Any:
    from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper

    steps: list[Any] = [TemperatureLogitsWarper(TEMPERATURE), TopPLogitsWarper(TOP_P), _OwnNoise(texts, seed)]
    return LogitsProcessorList(steps)


def _seed(text: str, seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}\0{text}".encode(), digest_size=7).digest(), "little")


def _chat(tokenizer: Any, prompt: str) -> str:
    message = [{"role": "user", "content": prompt}]
    text: str = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    return text
