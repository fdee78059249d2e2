"""The text side of a transformers model: cut in the open, padded so that a text is alone in its batch.

Rows are padded on the right whatever the tokenizer prefers, and masked: positions are then those of a text alone.
SigLIP's text tower was trained otherwise: it always reads all of its positions, padding among them, and pools the
last. So its texts are padded to all positions, and no mask is given. It was trained on lower case, which only
its first tokenizer sees to by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from vlpipe.cache_store.layout import ArraySpec
from vlpipe.extract.compute import exact
from vlpipe.extract.contracts import Prepared
from vlpipe.extract.hf_states import Tower, answer_names, read_answer, real_mean, specs
from vlpipe.extract.tokens import Tokens, longest_text
from vlpipe.foundation.errors import VlpipeError


class HfTexts:
    """Texts through one tower.

    `stated` is the longest text in tokens by the model's own files, `asked` by the user's settings. Raises
    `UsageError` where they do not fit the model, `VlpipeError` for a tokenizer that it cannot be read with.
    """

    def __init__(
        self, name: str, tower: Tower, tokenizer: Any, *, stated: int | None, asked: int | None, prompt: str
    ) -> None:
        if not _has_words(tokenizer):  # the library makes an empty one where a folder holds none
            raise VlpipeError(f"{name}: no vocabulary is in its files; expected tokenizer.json or alike")
        self.tower, self.prompt = tower, prompt
        if getattr(tower.config, "use_cache", False):
            tower.config.use_cache = False  # keys and values are for writing on: nothing is written here
        known = (tokenizer.model_max_length, self._positions(), stated)
        limit = longest_text(name, known, tokenizer.num_special_tokens_to_add(), asked)
        self.tokens = Tokens(tokenizer, limit)
        self.reads_padding = tower.config.model_type.startswith("siglip")
        self.lowers = self.reads_padding and type(tokenizer).__name__ != "SiglipTokenizer"
        if self.reads_padding and tokenizer.pad_token_id is None:
            raise VlpipeError(
                f"{name} reads padding, but its tokenizer has no padding token; name one in its files"
            )

    def identity(self) -> dict[str, str]:
        """Tokenizer, longest text, prompt; what SigLIP's texts go through besides."""
        found = {"tokenizer": self.tokens.identity(), "max_length": str(self.tokens.limit), "prompt": self.prompt}
        if self.reads_padding:
            found["padding"] = f"{self._padding()} to {self._positions()} tokens, read"
            found["case"] = "lower" if self.lowers else "the tokenizer's"
        return found

    def prepare(self, text: str) -> Prepared:
        """Token numbers (tokens,), begin and end among them. Raises `VlpipeError` for a text without any."""
        whole = self.prompt + text
        ids, cut = self.tokens.encode(whole.lower() if self.lowers else whole)
        if not ids:
            raise VlpipeError(f"text {text!r} gives no tokens")
        return Prepared({"input_ids": torch.tensor(ids)}, (cut,))

    def collate(self, rows: list[Tensor]) -> dict[str, Tensor]:
        """`input_ids` (rows, tokens) and `attention_mask`, 1 where a token is real."""
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self._padding())
        real = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        if self.reads_padding:
            more = (0, int(self._positions() or 0) - ids.shape[1])
            ids = nn.functional.pad(ids, more, value=self._padding())
            real = nn.functional.pad(real, more)
        return {"input_ids": ids, "attention_mask": real}

    @cached_property
    def outputs(self) -> dict[str, ArraySpec]:
        """Every output with its shape, as the model gives it for one short text."""
        tensors = self.collate([torch.tensor(self.tokens.encode("a")[0] or [0])])
        with exact():
            answer = self._answer(tensors, hidden=True)
            first = self.tokens.prefix[:1] == [self.tokens.tokenizer.cls_token_id]
            names = answer_names(answer, self.tower.head, lambda _: ["mean", "last", *(["cls"] if first else [])])
            return specs(self._read(answer, names, tensors))

    def run(self, tensors: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """The asked outputs of a batch, (rows, width) each; keeps gradients where they are on."""
        return self._read(self._answer(tensors, hidden=any("." in name for name in outputs)), outputs, tensors)

    def _answer(self, tensors: Mapping[str, Tensor], hidden: bool) -> Any:
        inputs = {name: tensor.to(self.tower.device) for name, tensor in tensors.items()}
        if self.reads_padding:
            del inputs["attention_mask"]
        return self.tower.call(**inputs, output_hidden_states=hidden)

    def _read(self, answer: Any, outputs: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        mask = tensors["attention_mask"].to(self.tower.device, torch.bool)

        def pool(state: Tensor, pooling: str) -> Tensor:
            if pooling == "cls":
                return state[:, 0]
            if pooling == "last":
                return state[torch.arange(len(state), device=state.device), mask.sum(1) - 1]
            return real_mean(state, mask)

        return read_answer(answer, outputs, pool)

    def _padding(self) -> int:
        """The number that fills up a row; masked, so for models without a padding token any will do."""
        known = (self.tokens.tokenizer.pad_token_id, getattr(self.tower.config, "pad_token_id", None))
        return next((number for number in known if number is not None and number >= 0), 0)

    def _positions(self) -> int | None:
        """Tokens that the model has positions for, special ones counted."""
        positions = getattr(self.tower.config, "max_position_embeddings", None)
        for module in self.tower.modules:
            table = getattr(getattr(module, "embeddings", None), "position_embeddings", None)
            padding = getattr(table, "padding_idx", None)
            if positions and padding is not None:
                return int(positions - padding - 1)  # RoBERTa counts from behind its padding number
        return positions


def _has_words(tokenizer: Any) -> bool:
    ordinary = tokenizer.get_vocab().keys() - {*tokenizer.all_special_tokens}
    return any(any(map(str.isalnum, token)) for token in ordinary)
