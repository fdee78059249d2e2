"""Texts as token numbers: where they are cut, how they begin, and what a tokenizer is."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterable
from typing import Any

from vlpipe.foundation.errors import UsageError
from vlpipe.foundation.files import digest

# For the process, as `catch_warnings` is not safe in threads: a doubled end token is dealt with here.
warnings.filterwarnings("ignore", "This sequence already has", UserWarning)

_NOT_RULES = ("vocab_file", "name_or_path", "padding_side", "model_max_length")  # paths, and what is decided here


class Tokens:
    """A transformers tokenizer that never cuts in silence; safe in threads.

    `limit` counts every token, special ones too. `prefix` and `suffix` are the special tokens that the tokenizer
    puts before and after a text; a cut text keeps both, so its end token is last.
    """

    def __init__(self, tokenizer: Any, limit: int) -> None:
        self.tokenizer = tokenizer
        self.limit = limit
        self._lock = threading.Lock()  # a call may set the tokenizer's truncation
        self.prefix, self.suffix = self._frame()

    def encode(self, text: str) -> tuple[list[int], bool]:
        """Token numbers, at most `limit`, and whether the text was cut."""
        ids = self._framed(self._plain(text))
        if len(ids) <= self.limit:
            return ids, False
        return ids[: self.limit - len(self.suffix)] + self.suffix, True

    def _plain(self, text: str) -> list[int]:
        with self._lock:
            return list(self.tokenizer(text, verbose=False, truncation=False, padding=False)["input_ids"])

    def _frame(self) -> tuple[list[int], list[int]]:
        """The special tokens around a text of one word."""
        ids, rules = self._plain("a"), self.tokenizer
        special = {*rules.all_special_ids} - {rules.unk_token_id}  # CLIP's stands for its end token, too
        special |= {rules.bos_token_id, rules.eos_token_id, rules.cls_token_id, rules.sep_token_id}
        inner = [place for place, number in enumerate(ids) if number not in special] or [0]
        return ids[: inner[0]], ids[inner[-1] + 1 :]

    def _framed(self, ids: list[int]) -> list[int]:
        """Exactly one begin and one end token where the tokenizer adds them: not doubled, not missing."""
        first, last = self.prefix[:1], self.suffix[-1:]
        while first and ids[:2] == first * 2:
            ids = ids[1:]
        while last and ids[-2:] == last * 2:
            ids = ids[:-1]
        begin = self.tokenizer.bos_token_id
        says = getattr(self.tokenizer, "add_bos_token", False) is True
        missing = says and begin not in (None, self.tokenizer.eos_token_id, *ids[:1])
        return [begin, *ids] if missing else ids

    def identity(self) -> str:
        """Digest of the vocabulary and of every rule, but not of the padding, which is ours."""
        return tokenizer_digest(self.tokenizer)


def tokenizer_digest(tokenizer: Any) -> str:
    """What a transformers tokenizer does, wherever it was loaded from."""
    begins = str(getattr(tokenizer, "add_bos_token", None))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # written in Python: its rules are its settings and the model that it reads
        rules = {name: str(rule) for name, rule in tokenizer.init_kwargs.items() if name not in _NOT_RULES}
        model = getattr(tokenizer, "sp_model", None)
        pieces = model.serialized_model_proto().hex() if model is not None else tokenizer.get_vocab()
        return digest([type(tokenizer).__name__, pieces, rules, begins])
    rules = json.loads(backend.to_str())
    # How the last call cut and padded is kept in there too.
    return digest([{name: rule for name, rule in rules.items() if name not in ("truncation", "padding")}, begins])


def longest_text(name: str, known: Iterable[int | None], special: int, asked: int | None) -> int:
    """The limit in tokens: the least that is known of the model, or less where less is asked for.

    `special` is the number of special tokens, which must fit. Raises `UsageError`.
    """
    limits = [limit for limit in known if limit and limit < 10**9]  # tokenizers say 10**30 for "no limit"
    if asked is None:
        if not limits:
            raise UsageError(f"{name} names no longest text; give one with --set max_length=N")
        return min(limits)
    if asked <= special or asked > min(limits, default=asked):
        longest = min(limits, default="any number of")
        raise UsageError(
            f"setting 'max_length' = {asked}: {name} takes {special + 1} to {longest} tokens, special ones counted"
        )
    return asked


def clip_token_count(tokenizer: Any, text: str) -> tuple[int, bool]:
    """How many real tokens of a text open_clip's tokenizer gives, and whether it cut the text, in silence.

    Special tokens count; padding does not, nor do tokens that the tokenizer itself takes out again.
    """
    context = int(tokenizer.context_length)
    if not hasattr(tokenizer, "tokenizer"):
        count, apart = len(tokenizer.encode(text)) + 2, 0  # start and end token
    else:
        clips = getattr(tokenizer, "tokenizer_mode", "") == "clips"  # these add a class token after the padding
        ids = tokenizer.tokenizer(
            tokenizer.clean_fn(text), add_special_tokens=not clips, truncation=False, padding=False
        )["input_ids"]
        count, apart = len(ids) + 3 * clips, int(clips or tokenizer.strip_sep_token)
    return max(1, min(count, context) - apart), count > context


def clip_tokenizer_digest(tokenizer: Any) -> str:
    """What a tokenizer of open_clip does: its own kind, or a transformers one inside."""
    inner = getattr(tokenizer, "tokenizer", None)
    rules = [type(tokenizer).__name__, getattr(tokenizer.clean_fn, "__name__", ""), tokenizer.context_length]
    if inner is not None:
        mode = [getattr(tokenizer, name, None) for name in ("tokenizer_mode", "strip_sep_token")]
        return digest([*rules, *mode, tokenizer_digest(inner)])
    reduction = getattr(tokenizer.reduction_fn, "__name__", "")
    return digest([*rules, reduction, tokenizer.encoder, [list(pair) for pair in tokenizer.bpe_ranks]])
