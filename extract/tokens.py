"""Texts as token numbers: where they are cut, how they begin, and what a tokenizer is."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from typing import Any

from vlpipe.foundation.errors import UsageError
from vlpipe.foundation.files import digest


class Tokens:
    """A transformers tokenizer that never cuts in silence; safe in threads.

    `limit` counts every token, special ones too. A cut text keeps its special tokens, so its end token is last.
    """

    def __init__(self, tokenizer: Any, limit: int) -> None:
        self.tokenizer = tokenizer
        self.limit = limit
        self._lock = threading.Lock()  # setting truncation changes the tokenizer

    def encode(self, text: str) -> tuple[list[int], bool]:
        """Token numbers, at most `limit`, and whether the text was cut."""
        with self._lock:
            plain = list(self.tokenizer(text, verbose=False)["input_ids"])
            ids = self._begun(plain)
            if len(ids) <= self.limit:
                return ids, False
            room = self.limit + len(plain) - len(ids)
            return self._begun(list(self.tokenizer(text, truncation=True, max_length=room)["input_ids"])), True

    def _begun(self, ids: list[int]) -> list[int]:
        """Exactly one begin token where the tokenizer says that it adds one: not doubled, not missing."""
        begin = self.tokenizer.bos_token_id
        if begin is None or begin == self.tokenizer.eos_token_id:
            return ids
        while ids[:2] == [begin, begin]:
            ids = ids[1:]
        missing = getattr(self.tokenizer, "add_bos_token", False) is True and ids[:1] != [begin]
        return [begin, *ids] if missing else ids

    def identity(self) -> str:
        """Digest of the vocabulary and of every rule, but not of the padding, which is ours."""
        return tokenizer_digest(self.tokenizer)


def tokenizer_digest(tokenizer: Any) -> str:
    """What a transformers tokenizer does, wherever it was loaded from."""
    begins = str(getattr(tokenizer, "add_bos_token", None))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return digest([type(tokenizer).__name__, tokenizer.get_vocab(), begins])
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


def is_cut(tokenizer: Any, text: str) -> bool:
    """Whether a text has more tokens than the context holds: open_clip's tokenizers cut in silence."""
    if not hasattr(tokenizer, "tokenizer"):
        return len(tokenizer.encode(text)) + 2 > int(tokenizer.context_length)  # start and end token
    inner, clips = tokenizer.tokenizer, getattr(tokenizer, "tokenizer_mode", "") == "clips"
    ids = inner(tokenizer.clean_fn(text), add_special_tokens=not clips, truncation=False, padding=False)[
        "input_ids"
    ]
    return len(ids) + 3 * clips > int(tokenizer.context_length)


def clip_tokenizer_digest(tokenizer: Any) -> str:
    """What a tokenizer of open_clip does: its own kind, or a transformers one inside."""
    inner = getattr(tokenizer, "tokenizer", None)
    rules = [type(tokenizer).__name__, getattr(tokenizer.clean_fn, "__name__", ""), tokenizer.context_length]
    if inner is not None:
        mode = [getattr(tokenizer, name, None) for name in ("tokenizer_mode", "strip_sep_token")]
        return digest([*rules, *mode, tokenizer_digest(inner)])
    reduction = getattr(tokenizer.reduction_fn, "__name__", "")
    return digest([*rules, reduction, tokenizer.encoder, [list(pair) for pair in tokenizer.bpe_ranks]])
