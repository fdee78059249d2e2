"""One training step of a TopK sparse autoencoder: ours, plain dense autograd, and other libraries'.

    python benchmarks/sae_step.py [--batch 1024 --batch 4096] [--rounds 7] [--only eai-sparsify]

512 values, 16,384 latents, K 128, no dead latents, one thread. A step is the loss, its gradients, clipping,
AdamW and the decoder's norms. Every round runs a step of each contender, with the optimiser that we use (fused)
and with torch's default: printed are the median CPU seconds of a step, and the median over the rounds of how many
times ours (as it is) that was, with its range. First comes the largest difference between our gradients and the
dense step's, as a share of the largest gradient, and between our codes and reconstructions and those of
dictionary-learning with the same weights. The others (sae-lens, eai-sparsify, dictionary-learning, overcomplete)
are best installed in an environment of their own, and one that cannot be imported is left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from sae_step_peers import PEERS, Built
from torch import Tensor, nn

from vlpipe.heads.contracts import Batch, Shapes
from vlpipe.heads.kinds.sae import Sae
from vlpipe.heads.sae_model import SparseAutoencoder

WIDTH, LATENTS, K = 512, 16_384, 128
BASE_LR = 1e-4


def ours() -> Sae:
    """The head, with settings that never call a latent dead."""
    torch.manual_seed(0)
    return Sae(Sae.Config(latents=LATENTS, k=K, aux_k=0), Shapes({"image": (WIDTH,)}))


def dense(width: int, latents: int, k: int) -> Built:
    """The same loss by plain autograd: a dense code, dense products."""
    torch.manual_seed(0)
    model = SparseAutoencoder(width, latents, k)

    def loss(x: Tensor) -> Tensor:
        z = F.relu((x - model.b_pre) @ model.W_enc.T + model.b_enc)
        top = z.topk(k, dim=1)
        code = torch.zeros_like(z).scatter(1, top.indices, top.values)
        return (code @ model.W_dec + model.b_pre - x).square().sum(dim=1).mean()

    return model, loss


def decoder_of(module: nn.Module) -> Tensor | None:
    """Decoder rows (latents, width), to be kept at unit norm; None where the module normalises them itself."""
    for name, parameter in module.named_parameters():
        if name in ("W_dec", "decoder.weight"):
            return parameter if len(parameter) == LATENTS else parameter.T
    return None


def step_of(built: Built, *, fused: bool) -> Callable[[Tensor], None]:
    """One whole training step of a module and its loss."""
    module, loss = built
    optimizer = torch.optim.AdamW(module.parameters(), lr=BASE_LR, weight_decay=0.0, fused=fused)
    rows = decoder_of(module)

    def step(x: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(x).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        if rows is not None:
            with torch.no_grad():
                rows.div_(torch.linalg.vector_norm(rows, dim=1, keepdim=True))

    return step


def seconds(step: Callable[[Tensor], None], x: Tensor) -> float:
    """CPU seconds of one step."""
    start = time.process_time()
    step(x)
    return time.process_time() - start


def compare_gradients(x: Tensor) -> None:
    """Print the largest difference between ours and the dense step's, in each precision."""
    for dtype in (torch.float32, torch.float64):
        head = ours().to(dtype)
        head.loss(Batch([], {"image": x.to(dtype)}))["loss"].backward()  # type: ignore[no-untyped-call]
        model, loss = dense(WIDTH, LATENTS, K)
        model.to(dtype)
        model.load_state_dict(head.autoencoder.state_dict())
        loss(x.to(dtype)).backward()  # type: ignore[no-untyped-call]
        differences = []
        for name, parameter in model.named_parameters():
            found, expected = head.autoencoder.get_parameter(name).grad, parameter.grad
            if found is not None and expected is not None:
                differences.append(float((found - expected).abs().max() / expected.abs().max()))
        print(f"gradients, {dtype}: {max(differences):.1e}")


def compare_with_peer(x: Tensor) -> None:
    """Print how far our codes and reconstructions are from dictionary-learning's, with the same weights."""
    try:
        module, _ = PEERS["dictionary-learning"](WIDTH, LATENTS, K)
    except ImportError:
        return
    peer: Any = module
    own = ours().autoencoder
    with torch.no_grad():
        own.b_enc.normal_(0, 0.1)
        own.b_pre.normal_(0, 0.1)
        peer.encoder.weight.copy_(own.W_enc)
        peer.encoder.bias.copy_(own.b_enc)
        peer.decoder.weight.copy_(own.W_dec.T)
        peer.b_dec.copy_(own.b_pre)
        wanted, expected = peer.encode(x).topk(K, dim=1)
        values, found = own.encode(x)
        same = (found.sort(dim=1).values == expected.sort(dim=1).values).all(dim=1)
        codes = (values - wanted)[same].abs().max()
        rebuilt = (own(x) - peer(x))[same].abs().max()
    print(
        f"dictionary-learning: the same {K} latents in {int(same.sum())} of {len(x)} rows, where values differ by "
        f"{codes:.1e} and reconstructions by {rebuilt:.1e}"
    )


def our_step(*, fused: bool) -> Callable[[Tensor], None]:
    """The head's own update."""
    head = ours()
    head.__dict__["fused"] = fused
    return lambda x: head.update(Batch([], {"image": x})) and None


def contenders(only: list[str] | None) -> dict[tuple[str, bool], Callable[[Tensor], None]]:
    """A step of each, by name and whether its optimiser is fused; those that cannot be made are told."""
    steps = {("vlpipe", fused): our_step(fused=fused) for fused in (True, False)}
    for name, build in {"dense autograd": dense, **PEERS}.items():
        if only and name not in only:
            continue
        try:
            made = {(name, fused): step_of(build(WIDTH, LATENTS, K), fused=fused) for fused in (True, False)}
            for step in made.values():
                step(torch.randn(8, WIDTH))
        except (ImportError, NotImplementedError) as error:
            print(f"  {name}: left out ({str(error).splitlines()[0][:100]})")
            continue
        steps |= made
    return steps


def measure(batch: int, rounds: int, only: list[str] | None) -> None:
    """Print a table for one size of batch."""
    x = torch.randn(batch, WIDTH, generator=torch.Generator().manual_seed(1))
    steps = contenders(only)
    taken: dict[tuple[str, bool], list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            spent = seconds(step, x)
            taken[name] += [spent] if number else []
    print(f"batch {batch}")
    for (name, fused), spent in taken.items():
        ratios = [own / base for own, base in zip(spent, taken["vlpipe", True], strict=True)]
        print(
            f"  {name}, {'fused' if fused else 'default'} AdamW: {statistics.median(spent):.3f} s, "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) times ours",
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, action="append", help="rows a step; may be repeated")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", action="append", choices=["dense autograd", *PEERS], help="may be repeated")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(1024, WIDTH, generator=torch.Generator().manual_seed(1))
    compare_gradients(x)
    compare_with_peer(x)
    for batch in chosen.batch or [1024, 4096]:
        measure(batch, chosen.rounds, chosen.only)


if __name__ == "__main__":
    main()
