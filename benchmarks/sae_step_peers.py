"""A training loss of the same TopK sparse autoencoder by other libraries, as their own trainers compute it.

Each function gives a module and its loss of a batch (rows, width). Auxiliary losses are off, as for ours: no
latent is dead in a first step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Built = tuple[nn.Module, Callable[[Tensor], Tensor]]


def eai_sparsify(width: int, latents: int, k: int) -> Built:
    """Its fused encoder and sparse decoder, that for CPUs."""
    os.environ["SPARSIFY_DISABLE_TRITON"] = "1"
    from sparsify import SparseCoder, SparseCoderConfig

    module = SparseCoder(width, SparseCoderConfig(num_latents=latents, k=k))
    return module, lambda x: module(x).fvu


def dictionary_learning(width: int, latents: int, k: int) -> Built:
    """Its `AutoEncoderTopK`, and the first part of its trainer's loss."""
    from dictionary_learning.trainers.top_k import AutoEncoderTopK

    module: Any = AutoEncoderTopK(width, latents, k)
    return module, lambda x: (x - module(x)).pow(2).sum(dim=-1).mean()


def overcomplete(width: int, latents: int, k: int) -> Built:
    """Its `TopKSAE` with a linear encoder without batch normalisation."""
    from overcomplete.sae import TopKSAE

    module: Any = TopKSAE(width, latents, top_k=k, encoder_module="linear")
    return module, lambda x: (x - module(x)[2]).square().mean()


def sae_lens(width: int, latents: int, k: int, sparse: bool = False) -> Built:
    """Its `TopKTrainingSAE`, dense codes."""
    from sae_lens.saes.sae import TrainStepInput
    from sae_lens.saes.topk_sae import TopKTrainingSAE, TopKTrainingSAEConfig

    config = TopKTrainingSAEConfig(d_in=width, d_sae=latents, k=k, use_sparse_activations=sparse)
    module: Any = TopKTrainingSAE(config)

    def loss(x: Tensor) -> Tensor:
        step = TrainStepInput(
            sae_in=x, coefficients={}, dead_neuron_mask=None, n_training_steps=1, is_logging_step=False
        )
        found: Tensor = module.training_forward_pass(step).loss
        return found

    return module, loss


def sae_lens_sparse(width: int, latents: int, k: int) -> Built:
    """The same with `use_sparse_activations`."""
    return sae_lens(width, latents, k, sparse=True)


PEERS = {
    "eai-sparsify": eai_sparsify,
    "dictionary-learning": dictionary_learning,
    "overcomplete": overcomplete,
    "sae-lens": sae_lens,
    "sae-lens, sparse": sae_lens_sparse,
}
