"""The TopK sparse autoencoder itself: an embedding as a sum of few directions, and back.

Gao et al., "Scaling and evaluating sparse autoencoders" (2024), as TEVI's Eqs. 3 and 4 use it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.sae_sparse import Pattern, active, bag, decode
from vlpipe.heads.vectors import unit


class SparseAutoencoder(nn.Module):
    """`z = TopK(ReLU(W_enc (x - b_pre) + b_enc))`, reconstruction `W_dec' z + b_pre` (Eqs. 3 and 4).

    `W_enc` and `W_dec` are (latents, d), one row a latent; `b_enc` (latents,), `b_pre` (d,). The decoder's rows
    are `rows` at unit norm, random ones when not given, and the encoder starts as the decoder transposed. A code
    is given by its `k` latents, strongest first, and their values; a value of 0 is no activation, whatever latent
    stands beside it. Raises `VlpipeError` when k is larger than the number of latents.
    """

    def __init__(
        self, width: int, latents: int, k: int, encoder_bias: float = 0.0, rows: Tensor | None = None
    ) -> None:
        super().__init__()
        if not 1 <= k <= latents:
            raise VlpipeError(
                f"k = {k} active latents of {latents}: expected 1 to {latents}; choose a smaller k (--set k=...), "
                "or more latents"
            )
        self.k = k
        start = unit(torch.randn(latents, width) if rows is None else rows)
        self.W_dec = nn.Parameter(start.clone())
        self.W_enc = nn.Parameter(start.clone())
        self.b_enc = nn.Parameter(torch.full((latents,), encoder_bias))
        self.b_pre = nn.Parameter(torch.zeros(width))

    @property
    def latents(self) -> int:
        """How many there are."""
        return len(self.W_dec)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values and indices, (..., K) each, of the active latents of raw embeddings (..., d); no gradients."""
        with torch.no_grad():
            values, pattern = self.codes(x.reshape(-1, x.shape[-1]))
        shape = (*x.shape[:-1], self.k)
        return values.reshape(shape), pattern.indices.reshape(shape)

    def decode(self, values: Tensor, indices: Tensor) -> Tensor:
        """Reconstructions (..., d) of codes (..., K); reads the rows of active latents only."""
        flat = bag(values.reshape(-1, values.shape[-1]), indices.reshape(-1, indices.shape[-1]), self.W_dec)
        found: Tensor = flat.reshape(*values.shape[:-1], -1) + self.b_pre.to(values.dtype)
        return found

    def codes(self, x: Tensor) -> tuple[Tensor, Pattern]:
        """Values (n, K) of embeddings (n, d), with gradients, and which latents they belong to (Eq. 3)."""
        found, pattern = active(*self._encoder(x), self.k)
        return found.relu(), pattern

    def reconstructed(self, values: Tensor, pattern: Pattern) -> Tensor:
        """Eq. 4 with gradients, (n, d)."""
        return decode(values, pattern, self.W_dec.to(values.dtype)) + self.b_pre.to(values.dtype)

    def revived(self, x: Tensor, dead: Tensor, k: int) -> Tensor:
        """What the k largest pre-activations among the `dead` latents (m,) decode to, without the bias: (n, d).

        They are not rectified: a dead latent that is negative everywhere would else never learn.
        """
        found, pattern = active(*self._encoder(x), min(k, len(dead)), dead)
        return decode(found, pattern, self.W_dec.to(found.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Reconstructions (..., d) of embeddings (..., d)."""
        return self.decode(*self.encode(x))

    @torch.no_grad()
    def normalise_decoder(self) -> None:
        """Rows of the decoder to unit norm again."""
        self.W_dec.div_(torch.linalg.vector_norm(self.W_dec, dim=1, keepdim=True).clamp(min=1e-12))

    def _encoder(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Centred embeddings, weights and bias in the embeddings' precision."""
        return x - self.b_pre.to(x.dtype), self.W_enc.to(x.dtype), self.b_enc.to(x.dtype)
