"""One training step of a TopK sparse autoencoder: ours, plain dense autograd, and other libraries'.

    python benchmarks/sae_step.py [--batch 1024 --batch 4096] [--steps 5]

512 values, 16,384 latents, K 128, no dead latents, one thread. A step is the loss, its gradients, clipping,
AdamW and the decoder's norms. Printed are CPU seconds of the best step (which other work on the machine hardly
changes), and how many times ours that is: with the optimiser that we use (fused) for everyone, and with torch's
default. First comes the largest difference between our gradients and the dense step's, as a share of the largest
gradient. The others (sae-lens, eai-sparsify, dictionary-learning, overcomplete) are best installed in an
environment of their own, and one that cannot be imported is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

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


def seconds(step: Callable[[Tensor], None], x: Tensor, steps: int) -> float:
    """CPU seconds of the best of some steps, after one that is not counted."""
    taken = []
    for _ in range(steps + 1):
        start = time.process_time()
        step(x)
        taken.append(time.process_time() - start)
    return min(taken[1:])


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


def our_step(*, fused: bool) -> Callable[[Tensor], None]:
    """The head's own update."""
    head = ours()
    head.__dict__["fused"] = fused
    return lambda x: head.update(Batch([], {"image": x})) and None


def measure(batch: int, steps: int) -> None:
    """Print a table for one size of batch."""
    x = torch.randn(batch, WIDTH, generator=torch.Generator().manual_seed(1))
    base = {fused: seconds(our_step(fused=fused), x, steps) for fused in (True, False)}
    print(f"batch {batch}: ours {base[True]:.3f} s, with torch's default AdamW {base[False]:.3f} s")
    for name, build in {"dense autograd": dense, **PEERS}.items():
        try:
            taken = {fused: seconds(step_of(build(WIDTH, LATENTS, K), fused=fused), x, steps) for fused in base}
        except (ImportError, NotImplementedError) as error:
            print(f"  {name}: left out ({str(error).splitlines()[0][:100]})")
            continue
        print(
            f"  {name}: {taken[True]:.3f} s, {taken[True] / base[True]:.1f} times ours; default AdamW "
            f"{taken[False]:.3f} s, {taken[False] / base[True]:.1f} times ours as it is"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, action="append", help="rows a step; may be repeated")
    parser.add_argument("--steps", type=int, default=5, help="the best of so many counts")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    compare_gradients(torch.randn(1024, WIDTH, generator=torch.Generator().manual_seed(1)))
    for batch in chosen.batch or [1024, 4096]:
        measure(batch, chosen.steps)


if __name__ == "__main__":
    main()
