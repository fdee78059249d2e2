"""Memory is kept between batches, and pixels lie as a CPU's convolutions read them fastest."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys

import pytest
import torch

from vlpipe.extract.compute import pixels_to

PROGRAM = """
import json, resource, sys
import numpy as np
from vlpipe.extract.memory import keep_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def batch():
    before = faults()
    np.ones(128 << 20, np.uint8)
    return faults() - before

if sys.argv[1] == "keep":
    keep_memory()
batch()
print(json.dumps(batch()))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_a_second_batch_of_128_mib_takes_no_new_pages() -> None:
    run = {
        how: json.loads(
            subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True).stdout
        )
        for how in ("keep", "give back")
    }
    assert run["keep"] < 100
    assert run["give back"] > run["keep"]


def test_pixels_keep_their_values_and_places() -> None:
    pixels = torch.arange(2 * 3 * 4 * 5.0).view(2, 3, 4, 5)
    found = pixels_to(torch.device("cpu"), torch.float32, pixels)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, pixels)
    half = pixels_to(torch.device("cpu"), torch.float16, pixels)
    assert half.is_contiguous()
    assert torch.equal(half, pixels.half())
    patches = torch.ones(2, 16, 192)
    assert torch.equal(pixels_to(torch.device("cpu"), torch.float32, patches), patches)
