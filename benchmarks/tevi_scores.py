"""Time exact TEVI scoring of all image-text pairs against editing every pair; all numbers are of one machine.

python benchmarks/tevi_scores.py                      # d 512, 16,384 latents, K 128, a tenth of 5,000 x 25,000
python benchmarks/tevi_scores.py --share 0.01         # a hundredth
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vlpipe.foundation.config import resolve
from vlpipe.heads.contracts import Batch, Shapes
from vlpipe.heads.kinds.sae import Sae
from vlpipe.heads.kinds.tevi import Tevi

IMAGES, TEXTS = 5000, 25_000
BLOCK = 1024  # images and texts of a block, as evaluation asks for
SAMPLE = 12  # images, and texts, of the form that edits every pair


class Pair(NamedTuple):
    """By the wall's clock, and of processor time (of all threads), which other programs disturb less."""

    wall: float
    cpu: float


def main() -> None:
    """A line a form: microseconds a pair of the wall's clock and of processor time, then difference and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--latents", type=int, default=16_384)
    parser.add_argument("--k", type=int, default=128)
    parser.add_argument("--share", type=float, default=0.1, help="of the texts that are really scored")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    head, (images, texts) = made(asked), sides(asked)
    with torch.inference_mode():
        left, right = head.images(images), head.texts(texts)
        scores, exact = timed(lambda: blocks(head, left, right))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        expected, each = timed(lambda: every_pair(head, left, right))
    fast, slow = (
        Pair(*(1e6 * seconds / n for seconds in of)) for of, n in ((exact, scores.numel()), (each, SAMPLE**2))
    )
    error = float((scores[:SAMPLE, :SAMPLE] - expected).abs().max())
    whole = Pair(*(us * IMAGES * TEXTS / 60e6 for us in fast))
    print(f"{asked.dtype}, width {asked.width}, {asked.latents} latents, K {asked.k}, {asked.threads} threads")
    print(
        f"exact, {len(images.ids)} x {len(texts.ids)} pairs: {fast.wall:.2f} us a pair, processor {fast.cpu:.2f}, "
        f"peak {peak:.1f} GiB"
    )
    print(f"editing every pair, {SAMPLE} x {SAMPLE}: {slow.wall:.0f} us a pair, processor {slow.cpu:.0f}")
    print(
        f"ratio {slow.wall / fast.wall:.0f}, processor {slow.cpu / fast.cpu:.0f}; largest difference {error:.1e}"
    )
    print(
        f"{IMAGES} x {TEXTS}, extrapolated: {whole.wall:.1f} minutes, processor {whole.cpu:.1f}; memory the same"
    )


def made(asked: argparse.Namespace) -> Tevi:
    """An untrained head of the asked size."""
    torch.manual_seed(0)
    sizes = {"latents": asked.latents, "k": asked.k}
    under = Sae(resolve(Sae.Config, sizes), Shapes({"image": (asked.width,)}))
    shapes = Shapes(dict.fromkeys(("image", "text"), (asked.width,)), heads={"image": under})
    head = Tevi(resolve(Tevi.Config, {}), shapes)
    return head.double() if asked.dtype == "float64" else head


def sides(asked: argparse.Namespace) -> tuple[Batch, Batch]:
    """Random embeddings of as many images as there are, and of some of the texts."""
    counts = {"image": IMAGES, "text": round(TEXTS * asked.share)}
    rows = {side: torch.randn(n, asked.width, dtype=getattr(torch, asked.dtype)) for side, n in counts.items()}
    image, text = (Batch([""] * len(x), {side: x}) for side, x in rows.items())
    return image, text


def timed(make: Callable[[], Tensor]) -> tuple[Tensor, Pair]:
    """What it made, and the seconds that it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    return make(), Pair(time.perf_counter() - wall, time.process_time() - cpu)


def part(batch: Batch, start: int, count: int) -> Batch:
    """Some rows of a batch."""
    rows = slice(start, start + count)
    return Batch(batch.ids[rows], {name: x[rows] for name, x in batch.x.items()})


def blocks(head: Tevi, images: Batch, texts: Batch) -> Tensor:
    """All scores, block by block."""
    found = []
    for i in range(0, len(images.ids), BLOCK):
        row = [head.score(part(images, i, BLOCK), part(texts, t, BLOCK)) for t in range(0, len(texts.ids), BLOCK)]
        found.append(torch.cat(row, dim=1))
    return torch.cat(found)


def every_pair(head: Tevi, images: Batch, texts: Batch) -> Tensor:
    """The first `SAMPLE` images and texts, each pair's edited code decoded on its own (Eq. 9)."""
    chosen = part(images, 0, SAMPLE)
    codes, masks = head.activations(chosen), head.keep(part(texts, 0, SAMPLE))
    decoder, bias = (x.to(codes.dtype) for x in (head.autoencoder.W_dec, head.autoencoder.b_pre))
    found = codes.new_empty(SAMPLE, SAMPLE)
    for i in range(SAMPLE):
        for j in range(SAMPLE):
            edited = (codes[i] * masks[j]) @ decoder + bias
            found[i, j] = (edited / edited.norm()) @ texts.x["text"][j]
    return found


if __name__ == "__main__":
    main()
