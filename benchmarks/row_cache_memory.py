"""Anonymous memory that a shuffled epoch adds, by strategy: the limit is the memory budget and 64 MiB.

    python benchmarks/row_cache_memory.py --folder build/row-cache

Each strategy reads in a process of its own, which prints how far the largest RssAnon of its reading lies above
that before opening. Mapped pages belong to the page cache and are not counted, as the system can drop them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from row_cache_sets import SIZES, made

BUDGETS = (32 << 20, 128 << 20)


def anonymous() -> int:
    """Bytes of this process's anonymous memory, of Linux's own account."""
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("RssAnon:") + 1]) << 10


def read(store: Path, strategy: str, budget: int, batch: int) -> int:
    """The largest rise of anonymous memory in a shuffled epoch of one strategy, looked at each millisecond."""
    import numpy  # noqa: F401  what any reader has loaded before

    from vlpipe.cache_store.reader import open_features

    highest, done = 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.is_set():
            highest = max(highest, anonymous())
            time.sleep(0.001)

    before = anonymous()
    thread = threading.Thread(target=watch)
    thread.start()
    features = open_features(store, "x", strategy=strategy, memory_budget=budget)  # type: ignore[arg-type]
    for _ in features.batches(batch, shuffle=True, reuse=True):
        pass
    done.set()
    thread.join()
    return highest - before


def main() -> None:
    """Print one line a set, strategy and budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/row-cache"))
    parser.add_argument("--shrink", type=int, default=1)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        store, strategy, budget, batch = given.one
        print(read(Path(store), strategy, int(budget), int(batch)))
        return
    print("| set | strategy | budget (MiB) | added (MiB) |\n| --- | --- | ---: | ---: |")
    for name in SIZES:
        work = made(name, given.folder, given.shrink)
        size = work.rows * work.row_bytes
        for strategy, budget in [("resident", size), *((s, b) for s in ("mapped", "blocks") for b in BUDGETS)]:
            one = [str(work.store), strategy, str(budget), str(work.batch)]
            done = subprocess.run(
                [sys.executable, __file__, "--one", *one], check=True, capture_output=True, text=True
            )
            print(f"| {name} | {strategy} | {budget >> 20} | {int(done.stdout) >> 20} |", flush=True)


if __name__ == "__main__":
    main()
