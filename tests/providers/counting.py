"""Counting what a call allocates: array data (by NumPy's memory handler), Numba's runtime and Python objects."""

from __future__ import annotations

import ctypes
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cfunc, types
from numba.core.runtime import rtsys

from kernelmap_providers.simd import native

SET_HANDLER = 304
"""Place of ``PyDataMem_SetHandler`` in NumPy's C API (1.22 and later)."""
Address = ctypes.c_void_p
WORDS = np.zeros(2, np.int64)
"""Allocations of array data so far, and 1 while they count: what the handler gets as its context."""

_malloc = types.ExternalFunction("malloc", types.int64(types.int64))
_calloc = types.ExternalFunction("calloc", types.int64(types.int64, types.int64))
_realloc = types.ExternalFunction("realloc", types.int64(types.int64, types.int64))
_free = types.ExternalFunction("free", types.void(types.int64))


class Handler(ctypes.Structure):
    """``PyDataMem_Handler``."""

    _fields_ = [
        ("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("context", Address), ("malloc", Address),
        ("calloc", Address), ("realloc", Address), ("free", Address),
    ]  # fmt: skip


@cfunc("int64(int64, int64)")
def count_malloc(context: int, size: int) -> Any:
    native.atomic_add(context, native.load_word(context + 8))
    return _malloc(size)


@cfunc("int64(int64, int64, int64)")
def count_calloc(context: int, count: int, size: int) -> Any:
    native.atomic_add(context, native.load_word(context + 8))
    return _calloc(count, size)


@cfunc("int64(int64, int64, int64)")
def count_realloc(context: int, old: int, size: int) -> Any:
    native.atomic_add(context, native.load_word(context + 8))
    return _realloc(old, size)


@cfunc("void(int64, int64, int64)")
def plain_free(_context: int, old: int, _size: int) -> None:
    _free(old)


_FUNCTIONS = count_malloc, count_calloc, count_realloc, plain_free
_HANDLER = Handler(b"counting", 1, WORDS.ctypes.data, *(function.address for function in _FUNCTIONS))
# Arrays made under the handler free their data through it, some of them when the interpreter ends.
for _kept in (WORDS, _HANDLER, *_FUNCTIONS):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))


@contextmanager
def counted_data() -> Iterator[None]:
    """NumPy's data comes from a handler that counts; the handler before is put back."""
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = Address, [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_New.restype = ctypes.py_object
    api.PyCapsule_New.argtypes = [Address, ctypes.c_char_p, Address]
    table = api.PyCapsule_GetPointer(np._core._multiarray_umath._ARRAY_API, None)  # type: ignore[attr-defined]
    address = ctypes.cast(table, ctypes.POINTER(Address))[SET_HANDLER]
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(address)
    before = set_handler(api.PyCapsule_New(ctypes.addressof(_HANDLER), b"mem_handler", None))
    try:
        yield
    finally:
        set_handler(before)


@dataclass(slots=True)
class Counts:
    """What calls allocated inside of `counting`: arrays' data, blocks of Numba's runtime, most bytes of Python's."""

    calls: int = 0
    data: int = 0
    runtime: int = 0
    most_bytes: int = 0

    def reset(self) -> None:
        """Forget all calls."""
        self.calls = self.data = self.runtime = self.most_bytes = 0


def counting(run: Callable[..., int], counts: Counts) -> Callable[..., int]:
    """``run``, adding to ``counts`` what it allocates. Needs `counted_data`, tracemalloc and Numba's statistics on."""

    def counted(*given: Any) -> int:
        runtime = rtsys.get_allocation_stats().alloc
        WORDS[:] = 0, 1
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        status = run(*given)
        _, most = tracemalloc.get_traced_memory()
        WORDS[1] = 0
        counts.calls += 1
        counts.data += int(WORDS[0])
        counts.runtime += rtsys.get_allocation_stats().alloc - runtime
        counts.most_bytes = max(counts.most_bytes, most - before)
        return status

    return counted
