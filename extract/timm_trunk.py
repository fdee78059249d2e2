"""A model of the timm library as its features, its states by layer, and its head; open_clip has some inside, too.

Layers are numbered alike for all families. Layer k >= 1 is the library's k-th intermediate: the state after block
k of a vision transformer, after stage k of a pyramid (Swin, ConvNeXt, ResNet), before any final norm. Layer 0 is
what goes into the first of them: the embeddings, or the stem's map; where the library counts a stem among the
intermediates (ResNet), that one.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from inspect import signature
from typing import Any

from torch import Tensor

from vlpipe.extract.block_states import ImageState, grid, recorded, sequence
from vlpipe.foundation.errors import VlpipeError


class TimmTrunk:
    """Reads a model without changing it. Raises `VlpipeError` for one whose features are not a single tensor."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.channels_last = getattr(model, "output_fmt", "NCHW") == "NHWC"
        self.prefix = int(getattr(model, "num_prefix_tokens", 0))
        token_owner = getattr(model, "embeds", model)  # NaFlex keeps it there
        self.has_class = getattr(token_owner, "cls_token", None) is not None
        info = getattr(model, "feature_info", None)
        self.modules = [entry["module"] for entry in getattr(info, "info", info) or ()]
        alike = {re.sub(r"\d+", "#", name) for name in self.modules[:2]}
        self.first = 0 if len(alike) == 2 else 1  # 0: the first intermediate is a stem, no stage like the second

    def features(
        self, pixels: Tensor, layers: Collection[int] | None = ()
    ) -> tuple[Tensor, dict[int, ImageState]]:
        """What `forward_features` gives, and the states of the asked layers (None: all) of the same pass."""
        if not hasattr(self.model, "forward_intermediates") or (layers is not None and not layers):
            return self._checked(self.model.forward_features(pixels)), {}
        wanted = None if layers is None else sorted(layer - self.first for layer in layers if layer >= self.first)
        block = self._first_block() if self.first and (layers is None or 0 in layers) else []
        with recorded(block, {0} if block else ()) as zero:
            features, maps = self._pass(pixels, wanted)
        numbers = range(len(maps)) if wanted is None else wanted
        states = {self.first + number: self._state(found) for number, found in zip(numbers, maps, strict=True)}
        if zero and (embeddings := self._embeddings(zero[0], features, pixels)):
            states[0] = embeddings
        return self._checked(features), states

    def final(self, features: Tensor) -> ImageState:
        """The features' patches and class token: after the final norm where one comes before the pooling."""
        if features.ndim == 4:
            return grid(features, self.channels_last)
        return sequence(features, self.prefix, self.has_class)

    def alone(self, features: Tensor) -> Tensor:
        """Each patch as the features of a picture of that patch only, (rows x patches, ...), in order.

        Copies of the patch stand in place of prefix tokens, so that every kind of pooling gives its value.
        """
        flat = self.final(features).patches.flatten(0, 1)
        if features.ndim == 3:
            return flat[:, None].expand(-1, self.prefix + 1, -1)
        return flat[:, None, None] if self.channels_last else flat[..., None, None]

    def _pass(self, pixels: Tensor, wanted: list[int] | None) -> tuple[Tensor, list[Any]]:
        if wanted == []:
            return self.model.forward_features(pixels), []
        options = {"return_prefix_tokens": True} if self.prefix and self._tells_prefix() else {}
        features, maps = self.model.forward_intermediates(
            pixels, indices=wanted, norm=False, output_fmt="NCHW", **options
        )
        return features, maps

    def _tells_prefix(self) -> bool:
        return "return_prefix_tokens" in signature(self.model.forward_intermediates).parameters

    def _first_block(self) -> list[Any]:
        try:
            return [self.model.get_submodule(name) for name in self.modules[:1]]
        except AttributeError:  # the library's own table is wrong for some (Twins)
            return []

    def _state(self, found: Tensor | tuple[Tensor, Tensor]) -> ImageState:
        if isinstance(found, Tensor):
            return grid(found)
        return ImageState(grid(found[0]).patches, found[1][:, 0] if self.has_class else None)

    def _embeddings(self, state: Tensor, features: Tensor, pixels: Tensor) -> ImageState | None:
        """Layer 0; None where only the model knows how its patches are arranged (Hiera, PVT)."""
        if state.ndim == 4:
            height, breadth = state.shape[1:3] if self.channels_last else state.shape[2:]
            alike = height * pixels.shape[3] == breadth * pixels.shape[2]
            return grid(state, self.channels_last) if alike else None
        before = state.shape[1] - (features.shape[1] - self.prefix)  # 0 for CaiT, which adds its class token later
        alike = features.ndim == 3 and before in (0, self.prefix)
        return sequence(state, before, self.has_class) if alike else None

    def _checked(self, features: Any) -> Tensor:
        if not isinstance(features, Tensor) or features.ndim not in (3, 4):
            raise VlpipeError(
                f"{type(self.model).__name__} gives features of several kinds; expected one map or sequence"
            )
        return features
