"""The process that decodes pictures, with decoders that break on files of these beginnings."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from vlpipe.extract import decoder

real = decoder.decode


def decode(data: bytes) -> Any:
    if data.startswith(b"crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if data.startswith(b"exit"):
        os._exit(3)
    if data.startswith(b"loop"):
        while True:
            pass
    if data.startswith(b"once"):  # as a process that was ended for want of memory
        name = data[4:].decode()
        if not os.path.exists(name):  # noqa: PTH110
            os.mkdir(name)  # noqa: PTH102
            os.kill(os.getpid(), signal.SIGKILL)
        with open(f"{name}.png", "rb") as file:  # noqa: PTH123
            data = file.read()
    return real(data)


decoder.decode = decode
decoder.SECONDS = 1
decoder.serve(sys.stdin.buffer, sys.stdout.buffer)
