"""TEVI: an image's sparse codes, of which a text decides what is kept.

"TEVI: Text-Conditioned Editing of Visual Representations via Sparse Autoencoders", sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.contracts import Batch, Role, Shapes
from vlpipe.heads.sae_model import SparseAutoencoder
from vlpipe.heads.tevi_head import MaskConfig, MaskNetwork, TextConditioned
from vlpipe.heads.tevi_losses import own_cosines
from vlpipe.heads.tevi_scores import edited_cosines, edited_rows, own_pairs
from vlpipe.heads.vectors import unit, working

MASK_BYTES = 64 << 20  # what the masks of some texts at once may take when whole blocks are scored


class Tevi(TextConditioned):
    """A mask from the text on the codes of a finished `sae` or `cg_sae` run: `v_i|j = W' (z_i m_j) + b` (Eq. 9).

    Images are read as that run reads them (`--source image=SPEC#OUTPUT::RUN`); the run itself stays as it is.
    Score is `cos(v_i|j, t_j)`, exact for all pairs. With mask 'none' nothing is edited: the images as the
    autoencoder gives them back. Raises `VlpipeError` for a run that is no autoencoder, and for texts of another
    width.
    """

    class Config(MaskConfig):
        """The mask learns at `lr`; on MAD the paper takes equation 10, hidden 256 and lr 0.01."""

        mask: Literal["learned", "none"] = "learned"

    roles: ClassVar[Mapping[str, Role]] = {"image": Role("image", stands=True), "text": Role("text")}
    code: ClassVar[int] = 2
    config: Config

    def __init__(self, config: Config, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        under: Any = shapes.heads["image"]
        if not isinstance(getattr(under, "autoencoder", None), SparseAutoencoder):
            raise VlpipeError(
                "'tevi' stands on a finished sae or cg_sae run, and its images come from a "
                f"head '{type(under).__name__}'; train one, then: --source image=SPEC#OUTPUT::RUN"
            )
        self.under = under.requires_grad_(False)
        image, text = shapes.width("image"), shapes.width("text")
        if text != image:
            raise VlpipeError(
                f"texts have {text} values a row and the autoencoder's images {image}: 'tevi' needs one space for "
                "both; name the text output of the encoder whose images it was trained on"
            )
        self.network = MaskNetwork(text, config.hidden or text, self.latents) if config.mask == "learned" else None

    @property
    def latents(self) -> int:
        """How many latents the autoencoder has."""
        return self.autoencoder.latents

    @property
    def autoencoder(self) -> SparseAutoencoder:
        """The frozen one."""
        found: SparseAutoencoder = self.under.autoencoder
        return found

    def mask(self, raw: Tensor) -> Tensor:
        """What adapted texts (m, d) keep of each latent: (m, latents) in [0, 1]."""
        if self.network is None:
            return raw.new_ones(len(raw), self.latents)
        kept: Tensor = self.network(raw.to(self.logit_scale.dtype))
        return kept.to(raw.dtype)

    def batch_cosines(self, images: Tensor, raw: Tensor) -> Tensor:
        """Eq. 10 or Eq. 11, (B, B)."""
        values, indices = self.under.codes(working(images))
        decoder, bias = self._dictionary(values)
        keep, texts = self.mask(raw), unit(raw)
        if self.config.equation == 10:
            return own_cosines(edited_rows(values, indices, decoder, bias, keep), texts)
        return edited_cosines(values, indices, decoder, bias, keep, texts)

    def images(self, batch: Batch) -> Batch:
        """Values (n, K) under "image", their latents (n, K) under "latents", unit rows (n, d) under "original"."""
        values, indices = self.under.codes(working(batch.x["image"]))
        x = {"image": values, "latents": indices, "original": unit(batch.x["image"])}
        return Batch(batch.ids, x, columns=batch.columns)

    def score(self, images: Batch, texts: Batch) -> Tensor:
        """`cos(v_i|j, t_j)`, (images, texts), some texts' masks at a time."""
        rows = texts.x["text"]
        found = rows.new_empty(len(images.ids), len(rows))
        step = max(1, MASK_BYTES // (self.latents * rows.element_size()))
        for part in _slices(len(rows), step):
            keep = self.mask(texts.x["raw"][part])
            found[:, part] = edited_cosines(*_codes(images), *self._dictionary(rows), keep, rows[part])
        return found

    def score_pairs(self, images: Batch, texts: Batch) -> Tensor:
        """`cos(v_i|i, t_i)`, (rows,)."""
        rows = texts.x["text"]
        return own_pairs(*_codes(images), *self._dictionary(rows), self.keep(texts), rows)

    def keep(self, texts: Batch) -> Tensor:
        """Each text's mask, (rows, latents)."""
        return self.mask(texts.x["raw"])

    def edited(self, images: Batch, keep: Tensor) -> Tensor:
        """Eq. 9 with row i's mask (rows, latents) on row i's image: (rows, d), not of unit length."""
        values, indices = _codes(images)
        return edited_rows(values, indices, *self._dictionary(values), keep)

    def original(self, images: Batch) -> Tensor:
        """Unit embeddings as they were cached, (rows, d)."""
        return images.x["original"]

    def activations(self, images: Batch) -> Tensor:
        """Codes with all their zeros, (rows, latents)."""
        values, indices = _codes(images)
        return values.new_zeros(len(values), self.latents).scatter_(1, indices, values)

    def directions(self) -> Tensor:
        """The decoder's rows, (latents, d), in the space of the texts."""
        return self.autoencoder.W_dec

    def _dictionary(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Decoder and bias in the precision of some rows."""
        return self.autoencoder.W_dec.to(like.dtype), self.autoencoder.b_pre.to(like.dtype)


def _codes(images: Batch) -> tuple[Tensor, Tensor]:
    """Values and latents, (n, K) each, of what `images` gave."""
    return images.x["image"], images.x["latents"]


def _slices(count: int, step: int) -> Iterator[slice]:
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
