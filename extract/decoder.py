"""A process of its own that decodes pictures: whatever a decoder does to it, the extraction goes on.

`python -m vlpipe.extract.decoder` says that it is there, then reads requests on stdin until its end: the size of a
file's bytes, and these. It answers each on stdout by a head and a body: the RGB pixels of the upright picture, or
why there are none.
"""

from __future__ import annotations

import signal
import struct
import sys
from contextlib import suppress
from typing import BinaryIO

from vlpipe.extract.memory import keep_memory
from vlpipe.extract.pictures import PictureError, decode

READY = b"ready"
REQUEST = struct.Struct("<Q")  # bytes that follow
HEAD = struct.Struct("<QII")  # bytes that follow, width and height; no width: they are a reason in UTF-8
SECONDS = 120  # for one picture; the largest that is allowed takes a few


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Decode until there are no more requests."""
    keep_memory()
    answers.write(READY)
    answers.flush()
    while head := requests.read(REQUEST.size):
        data = requests.read(*REQUEST.unpack(head))
        signal.alarm(SECONDS)  # ends this process, also while a decoder never comes back to Python
        width, height, body = _decoded(data)
        signal.alarm(0)
        answers.write(HEAD.pack(len(body), width, height))
        answers.write(body)
        answers.flush()


def _decoded(data: bytes) -> tuple[int, int, bytes]:
    try:
        picture = decode(data)
    except PictureError as error:
        return 0, 0, str(error).encode()
    return *picture.size, picture.tobytes()


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):  # whoever asked is gone
        serve(sys.stdin.buffer, sys.stdout.buffer)
