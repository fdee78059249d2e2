"""The two towers of an open_clip model: pooled embeddings, patches in the joint space, states by layer.

A patch in the joint space is what the tower's own head (pooling, norm, projection) makes of that patch alone:
- ViT with a class token or mean pooling: the final norm, then the projection;
- CoCa's and SigLIP's attention pooling: one key gets all attention, so the values' path and what follows;
- CLIP's ResNet: `c_proj(v_proj(x + position))`, the values' path that MaskCLIP takes (Zhou et al., ECCV 2022);
- towers of timm: pooling and projection over that patch.

Layers are counted as in `block_states`; in CLIP's ResNet they are the stages, layer 0 the stem.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.func import functional_call

from vlpipe.cache_store.layout import Side
from vlpipe.extract.block_states import State, TextState, grid, recorded, sequence
from vlpipe.extract.digest import tensors_digest
from vlpipe.extract.timm_trunk import TimmTrunk


@dataclass(frozen=True)
class Seen:
    """One pass: embeddings (rows, d), the asked layers' states, what the head reads in the tower's own form."""

    pooled: Tensor
    states: Mapping[int, State]
    features: Tensor


class ImageTower(Protocol):
    """One kind of `visual`."""

    joins: bool  # whether single patches have a place in the joint space

    def run(self, pixels: Tensor, layers: Collection[int] | None) -> Seen:
        """A pass over pixels (rows, 3, height, width); `layers` None is all."""
        ...

    def raw(self, features: Tensor) -> Tensor:
        """Final patches (rows, patches, width), before pooling and projection."""
        ...

    def joint(self, features: Tensor) -> Tensor:
        """Final patches in the joint space (rows, patches, d)."""
        ...


class VitTower:
    """The library's own vision transformer. Raw patches are after its final norm, unless that follows a pooling
    by attention, as in CoCa: then they are the last block's.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.visual = model, model.visual
        self.blocks = list(self.visual.transformer.resblocks)
        self.pool = self.visual.attn_pool
        # Pooled twice, in parallel or in a cascade, patches have no one way into the joint space.
        self.joins = self.pool is None or self.visual.attn_pool_contrastive is None

    def run(self, pixels: Tensor, layers: Collection[int] | None) -> Seen:
        """Features are the last block's states (rows, 1 + patches, width)."""
        last = len(self.blocks)
        asked = range(last + 1) if layers is None else layers
        with recorded(self.blocks, {*asked, last}) as states:
            pooled = self.model.encode_image(pixels, normalize=False)
        return Seen(pooled, {k: sequence(states[k], 1, True) for k in asked}, states[last])

    def raw(self, features: Tensor) -> Tensor:
        """(rows, patches, width)."""
        patches = features[:, 1:]
        return self.visual.ln_post(patches) if self.pool is None else patches

    def joint(self, features: Tensor) -> Tensor:
        """(rows, patches, d)."""
        patches = self.raw(features)
        if self.pool is not None:
            alone = patches.flatten(0, 1)[:, None]
            one = {"query": self.pool.query[:1]}  # with a single key every query gives the same
            patches = self.visual.ln_post(functional_call(self.pool, one, (alone,))).view(*patches.shape[:2], -1)
        return patches if self.visual.proj is None else patches @ self.visual.proj


class ResNetTower:
    """CLIP's ResNet, which ends in one layer of attention over its map."""

    joins = True

    def __init__(self, model: Any) -> None:
        self.model, self.visual = model, model.visual
        self.blocks = [self.visual.layer1, self.visual.layer2, self.visual.layer3, self.visual.layer4]

    def run(self, pixels: Tensor, layers: Collection[int] | None) -> Seen:
        """Features are the last stage's map (rows, width, height, breadth)."""
        asked = range(5) if layers is None else layers
        with recorded(self.blocks, {*asked, 4}) as states:
            pooled = self.model.encode_image(pixels, normalize=False)
        return Seen(pooled, {k: grid(states[k]) for k in asked}, states[4])

    def raw(self, features: Tensor) -> Tensor:
        """(rows, patches, width)."""
        return grid(features).patches

    def joint(self, features: Tensor) -> Tensor:
        """(rows, patches, d)."""
        pool = self.visual.attnpool
        placed = self.raw(features) + pool.positional_embedding[1:].to(features.dtype)
        joined: Tensor = pool.c_proj(pool.v_proj(placed))
        return joined


class TimmTower:
    """A tower of timm (SigLIP, EVA, ConvNeXt, MobileCLIP) and the projection that open_clip puts behind it."""

    def __init__(self, model: Any) -> None:
        self.visual = model.visual
        self.trunk = TimmTrunk(self.visual.trunk)
        self.joins = not hasattr(self.visual.head, "pool")  # open_clip's own pools need a map of their one size

    def run(self, pixels: Tensor, layers: Collection[int] | None) -> Seen:
        """Features are the trunk's."""
        features, states = self.trunk.features(pixels, layers)
        return Seen(self._head(features), states, features)

    def raw(self, features: Tensor) -> Tensor:
        """(rows, patches, width)."""
        return self.trunk.final(features).patches

    def joint(self, features: Tensor) -> Tensor:
        """(rows, patches, d)."""
        patches = self.raw(features)
        return self._head(self.trunk.alone(features)).view(*patches.shape[:2], -1)

    def _head(self, features: Tensor) -> Tensor:
        pooled: Tensor = self.visual.head(self.visual.trunk.forward_head(features))
        return pooled


class TextTower:
    """The text side: the library's transformer, or one of transformers inside it."""

    def __init__(self, model: Any) -> None:
        self.model = model
        inner = getattr(model, "text", model).transformer
        lists = (module for module in inner.modules() if isinstance(module, nn.ModuleList))
        self.blocks = list(next(lists))  # the blocks come first, also in encoders that hold further lists

    def run(self, tokens: Tensor, lengths: Tensor, layers: Collection[int] | None) -> Seen:
        """A pass over token numbers (rows, context); features are the embeddings."""
        asked = range(len(self.blocks) + 1) if layers is None else layers
        with recorded(self.blocks, asked) as states:
            pooled = self.model.encode_text(tokens, normalize=False)
        return Seen(pooled, {k: TextState(states[k], lengths) for k in asked}, pooled)


def image_tower(model: Any) -> ImageTower:
    """The reader for a model's `visual`."""
    if hasattr(model.visual, "trunk"):
        return TimmTower(model)
    return ResNetTower(model) if hasattr(model.visual, "attnpool") else VitTower(model)


def weights(model: Any) -> dict[Side, str]:
    """A digest a side: another text tower does not make cached images stale."""
    unread = ("logit_", "text_decoder.")  # the constants, and CoCa's captioner
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(unread)}
    image = {name: tensor for name, tensor in state.items() if name.startswith("visual.")}
    text = {name: tensor for name, tensor in state.items() if name not in image}
    return {"image": tensors_digest(image), "text": tensors_digest(text)}


def constants(model: Any) -> dict[str, float]:
    """The logit scale, and the bias where there is one."""
    found = {"logit_scale": float(model.logit_scale.detach().exp())}
    if model.logit_bias is not None:
        found["logit_bias"] = float(model.logit_bias.detach())
    return found


class Tower(nn.Module):
    """One side of a model, for training: its own parameters by the library's names, none of the other side's."""

    def __init__(self, encoder: Any, side: Side, output: str) -> None:
        super().__init__()
        for name, module in encoder.model.named_children():
            if (name == "visual") == (side == "image"):
                self.add_module(name, module)
        for name, parameter in encoder.model.named_parameters(recurse=False):
            if side == "text" and not name.startswith("logit_"):
                self.register_parameter(name, parameter)
        self.read, self.output = encoder.run, output

    def forward(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """(rows, width) of prepared tensors."""
        rows: Tensor = self.read(tensors, (self.output,))[self.output]
        return rows
