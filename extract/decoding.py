"""Pictures are decoded in processes of their own: one that crashes or never ends costs its own row, no more.

Each is asked by one thread at a time, through pipes, in plain bytes: nothing is pickled, and the caller's main
module is not imported again. They do not load torch. A process that a picture has ended is replaced, and tried
once more, for the system may have ended it for want of memory.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from io import FileIO
from queue import LifoQueue
from typing import IO, cast

from PIL import Image

from vlpipe.extract.decoder import HEAD, READY, REQUEST, SECONDS
from vlpipe.extract.pictures import PictureError, decode
from vlpipe.extract.prefetch import BrokenWorkersError

COMMAND = (sys.executable, "-P", "-m", "vlpipe.extract.decoder")
PIPE_BYTES = 1 << 20  # most files, and small pictures, at once
TRIES = 2


class Decoders:
    """At most `count` processes that decode, each started when it is needed; with 0 it is done right here."""

    def __init__(self, count: int) -> None:
        self._all = [_Decoder() for _ in range(count)]
        self._idle: LifoQueue[_Decoder] = LifoQueue()
        for decoder in self._all:
            self._idle.put(decoder)

    def decode(self, data: bytes) -> Image.Image:
        """As `pictures.decode` does, for any number of threads.

        Raises `PictureError`, also where a process ended over it, and `BrokenWorkersError` where none can start.
        """
        if not self._all:
            return decode(data)
        decoder = self._idle.get()
        try:
            return decoder.decode(data)
        finally:
            self._idle.put(decoder)

    def stop(self) -> None:
        """End all processes, also those at work, whose pictures fail."""
        for decoder in self._all:
            decoder.stop()

    def close(self) -> None:
        """Let go of what is left, when no thread decodes any more."""
        for decoder in self._all:
            decoder.close()


class _Decoder:
    """One process after the other, until it is stopped."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def decode(self, data: bytes) -> Image.Image:
        """Raises as `Decoders.decode` does."""
        code = 0
        for _ in range(TRIES):
            if self._stopped or code == -signal.SIGALRM:
                break
            process = self._process = self._process or _start()
            try:
                return _ask(process, data)
            except (BrokenPipeError, EOFError):
                self._process = None
                code = _end(process)
        raise PictureError(_why(code))

    def stop(self) -> None:
        """Start no process any more, and end the one that there is."""
        self._stopped = True
        if process := self._process:
            process.kill()

    def close(self) -> None:
        """Let go of it, when nobody decodes any more."""
        self.stop()
        if process := self._process:
            _end(process)


def _start() -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    reason = "it says something else than that it is ready"
    try:
        # A session of its own: Ctrl-C is for the extraction, which then ends this one. Unbuffered: a picture is
        # read to where it stays.
        process = subprocess.Popen(
            COMMAND, stdin=pipe, stdout=pipe, bufsize=0, pipesize=PIPE_BYTES, start_new_session=True
        )
        try:
            if _read(process, len(READY)) == READY:
                return process
        except EOFError:
            reason = f"exit code {process.wait()}"
        _end(process)
    except OSError as error:
        reason = str(error)
    raise BrokenWorkersError(
        f"a process that decodes pictures cannot start ({reason}); mend that, or decode without with --workers 0"
    )


def _end(process: subprocess.Popen[bytes]) -> int:
    """Whatever it does now; returns how it ended."""
    process.kill()
    code = process.wait()
    for pipe in (process.stdin, process.stdout):
        cast("IO[bytes]", pipe).close()
    return code


def _ask(process: subprocess.Popen[bytes], data: bytes) -> Image.Image:
    requests = cast("IO[bytes]", process.stdin)
    for part in (REQUEST.pack(len(data)), data):
        left = memoryview(part)
        while left:
            left = left[requests.write(left) :]
    size, *shape = HEAD.unpack(_read(process, HEAD.size))
    body = _read(process, size)
    if not shape[0]:
        raise PictureError(body.decode())
    return Image.frombuffer("RGB", (shape[0], shape[1]), body, "raw", "RGB", 0, 1)


def _read(process: subprocess.Popen[bytes], size: int) -> bytearray:
    """So many bytes; raises EOFError where the process ends before."""
    answers = cast("FileIO", process.stdout)
    found = bytearray(size)
    left = memoryview(found)
    while left:
        count = answers.readinto(left)
        if not count:
            raise EOFError
        left = left[count:]
    return found


def _why(code: int) -> str:
    if code == -signal.SIGALRM:
        return f"decoding it took more than {SECONDS} seconds"
    how = f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
    return f"the process that decoded it ended ({how}), each of {TRIES} times"
