"""The pool's Python half: starts the threads, survives ``fork``, hands out the control block's address."""

from __future__ import annotations

import ctypes
import os
import threading

import numpy as np
from numba import types

from kernelmap_providers.jit.compile import compiled
from kernelmap_providers.pool.control import SLOT_BYTES, prepare, work

MAX_THREADS = 256


class WorkerPool:
    """Parked native threads, started on first need, up to the largest thread count asked for.

    Safe from several Python threads at once. After a ``fork`` the child has a fresh, empty pool.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._started = 1
        self._control = 0

    def control(self, threads: int) -> int:
        """Address for ``pool.control.dispatch`` with up to ``threads`` threads. Raises ValueError outside 1..256."""
        if threads > self._started or not self._control:
            self._start(threads)
        return self._control

    def _start(self, threads: int) -> None:
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"between 1 and {MAX_THREADS} threads, not {threads}")
        with self._lock:
            if not self._control:
                self._control = _new_control()
            compiled(work, types.int64, types.int64)
            for index in range(self._started, threads):
                name = f"kernelmap-worker-{index}"
                threading.Thread(target=work, args=(self._control, index), name=name, daemon=True).start()
            self._started = max(self._started, threads)


def _new_control() -> int:
    """A zeroed control block, never freed: sleeping workers outlive every Python object."""
    words = np.zeros((MAX_THREADS * SLOT_BYTES + 64) // 8, np.int64)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(words))
    address = -(-int(words.ctypes.data) // 64) * 64
    compiled(prepare, types.int64, types.int64)(address, MAX_THREADS)
    return address


POOL = WorkerPool()
"""The process's one pool: kernels share it, so that no two of them run more threads than it has."""
