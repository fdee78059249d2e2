"""Extractions in processes that can be killed, without the seconds that importing torch takes each time.

A line `MANIFEST CACHE SECONDS` on stdin: a forked child encodes both outputs of the images, SECONDS a batch, and
its process id comes out. After a second line, of anything, its exit code does when it has ended, or minus the
signal that killed it. Up to that line the number is the child's, dead or alive, and killing it harms nobody else.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import zarr  # noqa: F401  # as long as torch
from toys.mini import job

from vlpipe.cache_store import layout
from vlpipe.extract.run import extract
from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.manifest import Manifest

torch.set_num_threads(1)
layout.CHUNK_BYTES = 384


def encode(folder: str, cache: str, seconds: str) -> int:
    """The exit code of a command line that does this."""
    settings = {"seconds": float(seconds), "log": f"{cache}.log"}
    work = job(Manifest.open(Path(folder)), Path(cache), settings=settings, outputs=("pooled", "tokens"))
    try:
        extract(work)
    except VlpipeError as error:
        return error.exit_code
    return 0


if __name__ == "__main__":
    print("ready", flush=True)
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            os._exit(encode(*line.split()))
        print(child, flush=True)
        sys.stdin.readline()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
