"""Opens model files: regular ones only, read-only, memory-mapped, with the stamp that later reads compare."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernelmap.errors import Diagnostic, KernelmapError, Place
from kernelmap.models.inventory import FileStamp

MAGIC_BYTES = 64


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A model file, mapped into memory."""

    name: str
    data: mmap.mmap
    stamp: FileStamp

    @property
    def size(self) -> int:
        """Bytes of the file when it was mapped."""
        return self.stamp.size


@contextmanager
def mapped(path: Path) -> Iterator[MappedFile]:
    """Maps a file while the block runs. Raises KernelmapError (KM601) if it cannot be read, is empty or no file."""
    item = map_file(path)
    try:
        yield item
    finally:
        item.data.close()


def map_file(path: Path) -> MappedFile:
    """Maps a file for as long as something refers to it. Raises KernelmapError (KM601)."""
    try:
        # Not blocking: opening a FIFO that nobody writes would otherwise wait for ever.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise unreadable(path, _reason(error)) from None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise unreadable(path, "not a regular file")
        if facts.st_size == 0:
            raise unreadable(path, "the file is empty")
        data = mmap.mmap(descriptor, facts.st_size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise unreadable(path, _reason(error)) from None
    finally:
        os.close(descriptor)
    return MappedFile(str(path), data, FileStamp(size=facts.st_size, mtime_ns=facts.st_mtime_ns))


def unreadable(path: Path, reason: str) -> KernelmapError:
    """The error of a file that cannot be read."""
    return KernelmapError(Diagnostic("KM601", f"cannot read {path}: {reason}", place=Place(str(path))))


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
