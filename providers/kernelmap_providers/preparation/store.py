"""A cache of prepared weights on disk.

One file an entry, named by everything that its bytes depend on (layout, layout version, digest of the source bytes),
so that a file is right or absent:

      0  magic    8 bytes, "KMPREP02"
      8  length   u32 little endian, bytes of the JSON that follows
     12  JSON     layout, version, source, dims, nbytes, crc32 of the data
   4096  data     mapped read-only, page-aligned

Files are written under another name and renamed when whole. What cannot be written (a read-only or full disk) is made
in memory, with a warning; what does not check out is made anew.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias

import numpy as np

from kernelmap_providers.arguments import Array
from kernelmap_providers.jit.location import cache_root
from kernelmap_providers.packed.weight import aligned_bytes

ENVIRONMENT = "KERNELMAP_PREPARED_CACHE"
"""Unset, empty or ``off``: no cache. ``on``: kernelmap's cache folder. Anything else: a folder."""
MAGIC = b"KMPREP02"
DATA_OFFSET = 4096
_CHUNK = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Entry:
    """What a prepared tensor is made from; together it names the file."""

    layout: str
    version: int
    source: str
    dims: tuple[int, ...]
    nbytes: int

    @property
    def file_name(self) -> str:
        """Unique for layout, its version, and the source bytes with their format and shape."""
        return f"{self.layout}-v{self.version}-{self.source}.kmprep"


class PreparedCacheWarning(UserWarning):
    """The cache could not be used; the weight was prepared in memory."""


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of prepared weights."""

    folder: Path
    Fill: ClassVar[TypeAlias] = Callable[[Array], None]

    def load_or_make(self, entry: Entry, fill: Store.Fill) -> Array:
        """uint8 ``[nbytes]``: the entry's bytes from its file, made by ``fill`` (into zeroed bytes) if need be."""
        path = self.folder / entry.file_name
        found = _load(path, entry)
        if found is not None:
            return found
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write(path, entry, fill)
        except OSError as error:
            message = f"prepared weights are not cached in {self.folder}: {error.strerror or error}"
            warnings.warn(message, PreparedCacheWarning, stacklevel=3)
        else:
            found = _load(path, entry)
            if found is not None:
                return found
        data = aligned_bytes(entry.nbytes)
        fill(data)
        return data


def configured_store() -> Store | None:
    """The store that the environment asks for, or None."""
    wanted = os.environ.get(ENVIRONMENT, "").strip()
    if wanted.lower() in ("", "off", "0"):
        return None
    if wanted.lower() in ("on", "1"):
        return Store(cache_root() / "prepared")
    return Store(Path(wanted))


def _load(path: Path, entry: Entry) -> Array | None:
    """A read-only map of the file's data; None if it is absent, of another make, torn or damaged."""
    try:
        with path.open("rb") as file:
            head = file.read(DATA_OFFSET)
        if len(head) < DATA_OFFSET or head[:8] != MAGIC or path.stat().st_size != DATA_OFFSET + entry.nbytes:
            return None
        (length,) = struct.unpack_from("<I", head, 8)
        said = json.loads(head[12 : 12 + length])
        data: Array = np.memmap(path, np.uint8, "r", DATA_OFFSET, (entry.nbytes,))
    except (OSError, ValueError):
        return None
    if said != _facts(entry, said.get("crc32") if isinstance(said, dict) else None) or _crc(data) != said["crc32"]:
        return None
    return data


def _facts(entry: Entry, crc: object) -> dict[str, object]:
    return {
        "layout": entry.layout,
        "version": entry.version,
        "source": entry.source,
        "dims": list(entry.dims),
        "nbytes": entry.nbytes,
        "crc32": crc,
    }


def _write(path: Path, entry: Entry, fill: Store.Fill) -> None:
    """Makes the data in a mapped temporary file and renames it: no second copy in memory, never half a file."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{entry.layout}-", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, DATA_OFFSET + entry.nbytes)  # a full disk says so here, not at a page
            data = np.memmap(file, np.uint8, "r+", DATA_OFFSET, (entry.nbytes,))
            fill(data)
            data.flush()
            text = json.dumps(_facts(entry, _crc(data))).encode()
            file.seek(0)
            file.write(MAGIC + struct.pack("<I", len(text)) + text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _crc(data: Array) -> int:
    crc = 0
    for start in range(0, len(data), _CHUNK):
        crc = zlib.crc32(data[start : start + _CHUNK].data, crc)
    return crc
