"""Tar shards in webdataset's layout: samples are members of one key, and a picture is read where it lies.

The path of such a picture is `SHARD.tar#OFFSET+SIZE`, both in bytes: it is read with one seek, in any order and by
any number of readers, and no index is kept. The member's header before it is checked on every reading, so that a
shard that was packed again is noticed.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from vlpipe.foundation.errors import VlpipeError

PATH = re.compile(r"(.+\.tar)#([0-9]+)\+([0-9]+)", re.DOTALL)
HEADER = tarfile.BLOCKSIZE


@dataclass(frozen=True)
class Member:
    """A file's bytes inside a shard."""

    shard: Path
    offset: int
    size: int

    @classmethod
    def parse(cls, path: Path) -> Member | None:
        """The member that a path names; None for the path of an ordinary file."""
        found = PATH.fullmatch(str(path))
        return cls(Path(found[1]), int(found[2]), int(found[3])) if found else None

    def path(self, root: Path) -> str:
        """How a manifest writes it, relative to `root`."""
        return f"{self.shard.relative_to(root).as_posix()}#{self.offset}+{self.size}"

    def read(self) -> bytes:
        """Its bytes. Raises `OSError` as a file does, `VlpipeError` where the shard holds something else there."""
        with self.shard.open("rb") as file:
            file.seek(max(0, self.offset - HEADER))
            found = file.read(HEADER + self.size)
        try:
            header = tarfile.TarInfo.frombuf(found[:HEADER], "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            header = None
        if header is None or header.size != self.size or len(found) != HEADER + self.size:
            raise VlpipeError(
                f"shard '{self.shard.name}' has no file of {self.size} bytes at byte {self.offset}: it was packed "
                "again or cut since the manifest was built; build the manifest again"
            )
        return found[HEADER:]

    def is_there(self) -> bool:
        """Whether the shard is there and long enough."""
        return self.shard.is_file() and self.shard.stat().st_size >= self.offset + self.size


def file_bytes(path: Path) -> bytes:
    """The bytes of a manifest's path, a file's or a member's. Raises `OSError`, `VlpipeError`."""
    member = Member.parse(path)
    return path.read_bytes() if member is None else member.read()


def file_is_there(path: Path) -> bool:
    """Whether a manifest's path leads to a file, or into a shard that is long enough."""
    member = Member.parse(path)
    return path.is_file() if member is None else member.is_there()


@dataclass(frozen=True)
class Sample:
    """Members of one key by ending: `000001.jpg` and `000001.txt` are `jpg` and `txt` of key `000001`."""

    key: str
    members: dict[str, Member] = field(default_factory=dict)


def samples(shard: Path) -> Iterator[Sample]:
    """A shard's samples in its order; only headers are read. The key ends at the first dot of the file's name.

    Raises `VlpipeError`: no tar, a cut one, an ending twice in one sample.
    """
    for key, group in groupby(_members(shard), key=lambda entry: _parts(entry[0])[0]):
        sample = Sample(key)
        for name, member in group:
            ending = _parts(name)[1]
            if ending in sample.members:
                raise VlpipeError(
                    f"shard '{shard}' holds '{name}' twice; expected each key's files once and together"
                )
            sample.members[ending] = member
        yield sample


def _parts(name: str) -> tuple[str, str]:
    folder, slash, file = name.rpartition("/")
    key, _, ending = file.partition(".")
    return folder + slash + key, ending.lower()


def _members(shard: Path) -> Iterator[tuple[str, Member]]:
    try:
        with tarfile.open(shard, "r:") as tar:
            while (info := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # it would keep every header
                hidden = info.name.rpartition("/")[2].startswith(".")  # macOS packs ._KEY.jpg before KEY.jpg
                if info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not hidden:
                    yield info.name.removeprefix("./"), Member(shard, info.offset_data, info.size)
            # The library takes a broken header for the end: rows would be missing, and nothing would say so.
            if not _is_end(shard, tar.offset):
                raise tarfile.ReadError(f"at byte {tar.offset} is neither a file nor the end")
    except (tarfile.TarError, OSError) as error:
        raise VlpipeError(
            f"shard '{shard}' is no whole tar file ({error}); fetch it again, or unpack it where it is compressed"
        ) from None


def _is_end(shard: Path, offset: int) -> bool:
    with shard.open("rb") as file:
        file.seek(offset)
        return file.read(HEADER) == bytes(HEADER)
