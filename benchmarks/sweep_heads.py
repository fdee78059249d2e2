"""16 heads: a sweep in turn, a sweep that trains them as one (`--together`), and 16 processes in a row.

    python benchmarks/sweep_heads.py [--only jam] [--rounds 3]

1,024 images with five captions, a hard negative each, widths 384, random numbers in float16; 16 seeds of each
head; one thread. Every round runs each contender once, in a folder of its own. Printed are the median of CPU
seconds (of the processes and all they start) and of wall time, and the largest difference between a weight trained
as one and the same weight trained alone, as a share of the largest weight of its tensor.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from made_features import ENCODER, make
from safetensors.torch import load_file

SEEDS = range(16)
HEADS = {
    "jam": ["epochs=3", "batch_size=32", "hidden=[64, 64, 64]", "latent=32"],
    "projection": ["epochs=10", "batch_size=32"],
    "tpc": ["epochs=10", "batch_size=128"],
}


def train_head(folder: Path, runs: Path, kind: str, *options: str) -> None:
    """One process of the command."""
    command = [sys.executable, "-m", "vlpipe.pipeline", "train-head", kind, "--threads", "1", "--encoder", ENCODER]
    command += ["--manifest", str(folder / "manifest"), "--cache", str(folder / "cache"), "--runs", str(runs)]
    command += [part for setting in HEADS[kind] for part in ("--set", setting)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL, env=environment)


def contender(name: str, folder: Path, runs: Path, kind: str) -> tuple[float, float]:
    """CPU seconds and wall time of all 16 heads."""
    before, start = os.times(), time.perf_counter()
    seeds = ",".join(map(str, SEEDS))
    if name == "16 processes":
        for seed in SEEDS:
            train_head(folder, runs, kind, "--seeds", str(seed))
    else:
        train_head(folder, runs, kind, "--seeds", seeds, *(["--together", "16"] if name == "as one" else []))
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, time.perf_counter() - start


def largest_difference(left: Path, right: Path) -> float:
    """Of all weights of all runs, as a share of the largest of their tensor."""
    worst = 0.0
    for path in left.glob("*/head.safetensors"):
        one, other = load_file(path), load_file(right / path.parent.name / path.name)
        worst = max(worst, *(float((one[n] - other[n]).abs().max() / other[n].abs().max()) for n in other))
    return worst


def measure(folder: Path, kind: str, rounds: int) -> None:
    """Print one head's lines."""
    names = ["16 processes", "in turn", "as one"]
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names:
            taken[name].append(contender(name, folder, folder / f"{kind}-{turn}-{name}", kind))
    print(kind, *HEADS[kind])
    base = [cpu for cpu, _ in taken["16 processes"]]
    for name in names:
        cpu, wall = (statistics.median(column) for column in zip(*taken[name], strict=True))
        ratio = statistics.median(b / own for b, (own, _) in zip(base, taken[name], strict=True))
        print(f"  {name:12} {cpu:7.1f} s CPU, {wall:7.1f} s wall; 16 processes take {ratio:.2f} times the CPU")
    difference = largest_difference(folder / f"{kind}-0-as one", folder / f"{kind}-0-in turn")
    print(f"  largest difference of a weight, as one against in turn: {difference:.1e}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(HEADS))
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        make(Path(name), 1024, 384, 250)
        for kind in chosen.only or HEADS:
            measure(Path(name), kind, chosen.rounds)


if __name__ == "__main__":
    main()
