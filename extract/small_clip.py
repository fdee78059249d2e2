"""A CLIP of half a million parameters: two transformers of six layers and a tokenizer of whole words.

The size is that of the MAD experiments in TEVI's appendix A.1; the arrangement (pre-norm, causal text, the end
token's state as the text's vector) is CLIP's (Radford et al., 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from vlpipe.foundation.config import Config
from vlpipe.foundation.errors import VlpipeError


class SmallClipConfig(Config):
    """The architecture; the words are the vocabulary without its two special tokens."""

    words: list[str]
    separator: str = "-"
    context: int = 8  # tokens a text, with start and end
    side: int = 28  # pixels
    width: int = 64
    layers: int = 6
    heads: int = 4
    feedforward: int = 128
    embedding: int = 18
    stem: list[int] = Field(
        default=[32, 64, 80, 64], min_length=4, max_length=4
    )  # channels of the four convolutions; the last is the width


class WordTokenizer:
    """Whole words between separators; token numbers are the words' places, then start, then end.

    The end token also fills a row after its end: the text tower is causal and reads the first end token, so what
    follows never matters.
    """

    def __init__(self, words: Sequence[str], separator: str, context: int) -> None:
        self.numbers = {word: number for number, word in enumerate(words)}
        self.separator = separator
        self.context = context
        self.start = len(words)
        self.end = len(words) + 1

    def __len__(self) -> int:
        return self.end + 1

    def encode(self, text: str) -> tuple[Tensor, bool]:
        """Token numbers (context,) and whether words were cut off the end.

        Raises `VlpipeError` naming a word outside the vocabulary.
        """
        words = text.split(self.separator)
        for word in words:
            if word not in self.numbers:
                raise VlpipeError(
                    f"text '{text}': the word '{word}' is outside the vocabulary; expected words joined by "
                    f"'{self.separator}' out of {', '.join(self.numbers)}"
                )
        room = self.context - 2
        tokens = [self.start, *(self.numbers[word] for word in words[:room])]
        tokens += [self.end] * (self.context - len(tokens))
        return torch.tensor(tokens, dtype=torch.int64), len(words) > room


class Block(nn.Module):
    """Attention, then two linear layers, each behind a norm and beside a shortcut."""

    def __init__(self, config: SmallClipConfig, causal: bool) -> None:
        super().__init__()
        self.heads = config.heads
        self.causal = causal
        self.norm_attention = nn.LayerNorm(config.width)
        self.mix = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.norm_feedforward = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, config.feedforward)
        self.down = nn.Linear(config.feedforward, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, tokens, width) to the same."""
        rows, tokens, width = x.shape
        mixed = self.mix(self.norm_attention(x)).view(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)  # (rows, heads, tokens, width / heads) each
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, tokens, width))
        grown: Tensor = x + self.down(F.gelu(self.up(self.norm_feedforward(x))))
        return grown


class ImageTower(nn.Module):
    """Four 3x3 convolutions (strides 1, 2, 2, 1) to 7 x 7 patches, a class token, six blocks, a projection."""

    def __init__(self, config: SmallClipConfig) -> None:
        super().__init__()
        channels = [3, *config.stem]
        self.stem = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=stride, padding=1)
            for before, after, stride in zip(channels, config.stem, (1, 2, 2, 1), strict=False)
        )
        self.patches = (config.side // 4) ** 2
        self.first = nn.Parameter(0.02 * torch.randn(config.width))
        self.places = nn.Parameter(0.02 * torch.randn(self.patches + 1, config.width))
        self.blocks = nn.ModuleList(Block(config, causal=False) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.project = nn.Linear(config.width, config.embedding, bias=False)

    def states(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Normed states (rows, 1 + patches, width), class token first; `pixels` is uint8 (rows, 3, side, side)."""
        x = tensors["pixels"].float() / 127.5 - 1
        for layer in self.stem[:-1]:
            x = F.gelu(layer(x))
        x = self.stem[-1](x).flatten(2).transpose(1, 2)  # (rows, patches, width)
        x = torch.cat([self.first.expand(len(x), 1, -1), x], dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        normed: Tensor = self.norm(x)
        return normed

    def forward(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Embeddings (rows, embedding), not normalised."""
        projected: Tensor = self.project(self.states(tensors)[:, 0])
        return projected


class TextTower(nn.Module):
    """Word and place vectors, six causal blocks, the projected state of the first end token."""

    def __init__(self, config: SmallClipConfig) -> None:
        super().__init__()
        self.end = len(config.words) + 1
        self.tokens = nn.Embedding(self.end + 1, config.width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.places = nn.Parameter(0.01 * torch.randn(config.context, config.width))
        self.blocks = nn.ModuleList(Block(config, causal=True) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.project = nn.Linear(config.width, config.embedding, bias=False)

    def forward(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Embeddings (rows, embedding), not normalised; `tokens` is int64 (rows, context)."""
        tokens = tensors["tokens"]
        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        ends = (tokens == self.end).int().argmax(dim=1)
        projected: Tensor = self.project(self.norm(x[torch.arange(len(x)), ends]))
        return projected
