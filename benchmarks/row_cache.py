"""Reading and writing the row cache, against the limits of this machine and against its peers.

    python benchmarks/row_cache.py --folder build/row-cache                       # all of it, about 15 minutes
    python benchmarks/row_cache.py --folder build/row-cache --only mapped --runs 9

Two sets of random numbers in float16: 200,000 rows of 768, and 4,000 rows of 196 x 512 (patch tokens). Each round
runs every contender of a comparison once, one after the other, so that what else the machine does falls on all; a
ratio is the median over the rounds of the first contender's time to this one's. Cold: the files are dropped from
the page cache before every pass.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

sys.path.insert(0, str(Path(__file__).parent))

import row_cache_peers as peers
from row_cache_sets import SIZES, Work, made, write_plain, write_store

from vlpipe.cache_store.reader import open_features

Contenders = dict[str, Callable[[int], int]]  # one pass with a seed; returns the rows it gave
ALL = 1 << 40  # a memory budget without limit


def drop(folder: Path) -> None:
    """Take the files out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def permutation(work: Work, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """A shuffled epoch's positions, batch by batch."""
    order = np.random.default_rng(seed).permutation(work.rows)
    return (order[start : start + work.batch] for start in range(0, work.rows, work.batch))


def vlpipe_epoch(work: Work, strategy: Any, budget: int = ALL) -> Callable[[int], int]:
    """A shuffled epoch through `batches`, of a set that stays open between epochs."""
    features = open_features(work.store, "x", strategy=strategy, memory_budget=budget)

    def epoch(seed: int) -> int:
        batches = features.batches(work.batch, shuffle=True, seed=seed, reuse=True)
        return sum(len(batch.rows) for batch in batches)

    return epoch


def resident(work: Work) -> Contenders:
    """From memory: torch's gather of the same rows is the limit."""
    tensor = torch.from_numpy(work.values())
    out = torch.empty((work.batch, *work.shape), dtype=torch.float16)

    def limit(seed: int) -> int:
        done = 0
        for where in permutation(work, seed):
            torch.index_select(tensor, 0, torch.from_numpy(where), out=out[: len(where)])
            done += len(where)
        return done

    return {"torch.index_select, out reused": limit, "vlpipe resident": vlpipe_epoch(work, "resident")}


def mapped(work: Work) -> Contenders:
    """From mapped files: NumPy's gather from one mapped file is the limit."""
    mapping = np.load(work.plain, mmap_mode="r")
    out = np.empty((work.batch, *work.shape), np.float16)

    def fancy(seed: int) -> int:
        done = 0
        for where in permutation(work, seed):
            out[: len(where)] = mapping[where]
            done += len(where)
        return done

    def take(seed: int) -> int:
        done = 0
        for where in permutation(work, seed):
            np.take(mapping, where, axis=0, out=out[: len(where)], mode="clip")
            done += len(where)
        return done

    return {
        "np.memmap, fancy indexing into an array": fancy,
        "np.memmap, np.take(out=)": take,
        "vlpipe mapped": vlpipe_epoch(work, "mapped"),
        "vlpipe blocks": vlpipe_epoch(work, "blocks"),
    }


def against_peers(work: Work) -> Contenders:
    """The same epoch through the formats that others keep features in."""
    found: Contenders = {"vlpipe mapped": vlpipe_epoch(work, "mapped")}
    return found | {name: peer(work) for name, peer in peers.READERS.items()}


def sequential(work: Work) -> Contenders:
    """All rows in order: reading the same files into one buffer, unverified, is the limit."""
    buffer = bytearray(16 << 20)

    def readinto(paths: list[Path]) -> Callable[[int], int]:
        def run(seed: int) -> int:
            size = 0
            for path in paths:
                with path.open("rb", buffering=0) as file:
                    while got := file.readinto(buffer):
                        size += got
            return size // work.row_bytes

        return run

    def blocks(strategy: Any) -> Callable[[int], int]:
        def run(seed: int) -> int:
            features = open_features(work.store, "x", strategy=strategy, memory_budget=256 << 20)
            return sum(len(block.rows) for block in features.blocks())

        return run

    opened = open_features(work.store, "x", strategy="mapped")
    into = np.empty(((16 << 20) // work.row_bytes, *work.shape), np.float16)

    def copied(seed: int) -> int:
        done = 0
        for _, rows in opened.blocks():
            np.copyto(into[: len(rows)], rows)
            done += len(rows)
        return done

    return {
        "readinto, the store's files": readinto(sorted((work.store / "x").glob("c.*"))),
        "readinto, one .npy file": readinto([work.plain]),
        "vlpipe blocks, opened and verified": blocks("blocks"),
        "vlpipe mapped, opened and verified": blocks("mapped"),
        "vlpipe mapped, verified before, copied out": copied,
    }


def writing(work: Work) -> Contenders:
    """A whole store, every block committed: one file and one fsync is the limit."""
    values = work.values()
    plain, store = work.folder / "w.npy", work.folder / "w"

    def limit(seed: int) -> int:
        plain.unlink(missing_ok=True)
        write_plain(values, plain)
        return work.rows

    def ours(seed: int) -> int:
        shutil.rmtree(store, ignore_errors=True)
        write_store(work, values, store / "w.image.zarr")
        return work.rows

    return {"np.save and fsync": limit, "vlpipe": ours}


COMPARISONS: dict[str, Callable[[Work], Contenders]] = {
    "resident": resident,
    "mapped": mapped,
    "peers": against_peers,
    "sequential": sequential,
    "write": writing,
}


def rounds(work: Work, make: Callable[[Work], Contenders], runs: int, cold: bool) -> dict[str, list[float]]:
    """Seconds of each contender in each round; when cold, all is opened anew for every pass."""
    contenders = make(work)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for seed in range(runs + 1):
        for name in seconds:
            if cold:
                contenders = {}
                gc.collect()  # what is mapped stays in the page cache
                contenders = make(work)
                drop(work.folder)
            start = time.perf_counter()
            rows = contenders[name](seed)
            taken = time.perf_counter() - start
            seconds[name].append(taken * work.rows / rows)  # a slow peer reads a part only
    return {name: taken[1:] for name, taken in seconds.items()}  # the first round warms up


def summary(work: Work, seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Median seconds of each contender, and the median of its ratios to the first one."""
    reference = next(iter(seconds.values()))
    return [
        {
            "contender": name,
            "seconds": statistics.median(taken),
            "spread": [min(taken), max(taken)],
            "GB/s": work.rows * work.row_bytes / statistics.median(taken) / 1e9,
            "ratio": statistics.median(limit / own for limit, own in zip(reference, taken, strict=True)),
        }
        for name, taken in seconds.items()
    ]


def show(title: str, found: list[dict[str, Any]]) -> None:
    """One comparison as a Markdown table."""
    print(f"\n### {title}\n\n| | seconds (median, range) | GB/s | of the first |\n| --- | ---: | ---: | ---: |")
    for line in found:
        low, high = line["spread"]
        times = f"{line['seconds']:.3f} ({low:.3f} to {high:.3f})"
        print(f"| {line['contender']} | {times} | {line['GB/s']:.2f} | {line['ratio']:.2f} |", flush=True)


def machine() -> str:
    """What was measured on, and with what."""
    libraries = ("torch", "numpy", "zarr", "h5py", "webdataset", "litdata", "datasets")
    versions = ", ".join(f"{name} {version(name)}" for name in libraries)
    return f"{os.cpu_count()} cores, {platform.machine()}; Python {platform.python_version()}; {versions}"


def main() -> None:
    """Make both sets once, then measure what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/row-cache"))
    parser.add_argument("--only", choices=COMPARISONS, nargs="*", default=list(COMPARISONS))
    parser.add_argument("--sets", choices=SIZES, nargs="*", default=list(SIZES))
    parser.add_argument("--runs", type=int, default=5, help="counted rounds, after one that warms up")
    parser.add_argument("--shrink", type=int, default=1, help="divide the numbers of rows, to try the script")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    given = parser.parse_args()
    torch.set_num_threads(1)  # as the gather of one reader is measured
    print(machine())
    numbers: dict[str, Any] = {}
    for name in given.sets:
        work = made(name, given.folder, given.shrink)
        for comparison in given.only:
            for cold in (False, True):
                if cold and comparison in ("resident", "write"):
                    continue  # nothing is read
                title = f"{name} {comparison}, {'cold' if cold else 'warm'}"
                numbers[title] = summary(work, rounds(work, COMPARISONS[comparison], given.runs, cold))
                show(title, numbers[title])
    if given.json:
        given.json.write_text(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
