"""Numba's cache interface over one file a compiled signature.

Numba's own store keeps an index file a function and numbers its data files; two processes that compile different
signatures at once can leave an index that points to the other's code. Here the file's name is the whole key, so a file
is complete and right, or absent.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import CompileResultCacheImpl, _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from kernelmap.compiling import tell
from kernelmap_providers.jit.location import cache_root
from kernelmap_providers.jit.sources import has_sources, source_digest

rebuild: Any = CompileResult._rebuild
cachable: Any = CompileResultCacheImpl.check_cachable
pickled: Any = dumps
"""Numba's own steps, untyped there."""

DIGEST_BYTES = 32
MAX_AGE_SECONDS = 90 * 24 * 3600
"""Files that nobody loaded for so long are removed: they belong to sources that have changed."""


@dataclass(frozen=True, slots=True)
class CompileEvent:
    """What happened to one signature of one function."""

    function: str
    signature: str
    kind: str
    """``loaded`` (from the cache), ``compiling`` (begins) or ``compiled`` (done, stored where possible)."""


Observer = Callable[[CompileEvent], None]
_observers: list[Observer] = []


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Call ``observer`` with every compile event inside the ``with`` block, e.g. to show progress."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def _tell(function: Any, signature: Any, kind: str) -> None:
    event = CompileEvent(f"{function.__module__}.{function.__qualname__}", str(signature), kind)
    for observer in _observers:
        observer(event)
    if kind != "loaded":
        tell(function.__qualname__, begins=kind == "compiling")


class SourceCache(_Cache):
    """Disk cache of one function's compiled signatures.

    The key: transitive sources of its module, function, signature (static arguments included), CPU name and features,
    versions of Numba, llvmlite and Python. A directory that cannot be written means compiling each time, with a
    warning.
    """

    _pruned = False

    def __init__(self, function: Any) -> None:
        self._function = function
        # Functions of a script or an interactive session have no module file to digest, so they are never kept.
        self._enabled = has_sources(function.__module__)

    @property
    def cache_path(self) -> str:
        """The directory of the files."""
        return str(cache_root() / "jit")

    def _file(self, signature: Any, codegen: Any) -> Path:
        function = self._function
        parts = (source_digest(function.__module__), function.__module__, function.__qualname__, str(signature),
                 repr(codegen.magic_tuple()), numba.__version__, llvmlite.__version__,
                 platform.python_version())  # fmt: skip
        name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]
        return Path(self.cache_path) / f"{function.__name__}-{name}.nbc"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled signature from disk, or None."""
        target_context.refresh()
        if self._enabled:
            payload = _read_whole(self._file(sig, target_context.codegen()))
            if payload is not None:
                content = pickle.loads(payload)
                result = rebuild(target_context, *content)
                _tell(self._function, sig, "loaded")
                return result
        _tell(self._function, sig, "compiling")
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a compiled signature, atomically."""
        if self._enabled and cachable(self, data):
            try:
                _write_atomically(self._file(sig, data.codegen), pickled(data._reduce()))
                self._prune()
            except OSError as error:
                self._enabled = False
                warnings.warn(f"compiled kernels are not cached: {error}", RuntimeWarning, stacklevel=2)
        _tell(self._function, sig, "compiled")

    def enable(self) -> None:
        """Use the disk, if the function's sources can be found."""
        self._enabled = has_sources(self._function.__module__)

    def disable(self) -> None:
        """Leave the disk alone."""
        self._enabled = False

    def flush(self) -> None:
        """Nothing is held back, so there is nothing to flush."""

    @classmethod
    def _prune(cls) -> None:
        """Once a process, after a store: remove files that nobody loads any more."""
        if SourceCache._pruned:
            return
        SourceCache._pruned = True
        oldest = time.time() - MAX_AGE_SECONDS
        for path in (cache_root() / "jit").glob("*.nbc"):
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)


def _read_whole(path: Path) -> bytes | None:
    """The payload of a file that is complete, which counts as a use of it; None otherwise."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    payload = content[DIGEST_BYTES:]
    if hashlib.sha256(payload).digest() != content[:DIGEST_BYTES]:
        return None
    with suppress(OSError):
        os.utime(path)
    return payload


def _write_atomically(path: Path, payload: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(payload).digest() + payload)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
