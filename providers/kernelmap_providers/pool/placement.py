"""Keeping the pool's threads on different cores without pinning them.

Linux wakes a worker on the core that it ran on last. Once another program's burst has pushed it onto the caller's core
it stays there: measured, two threads then share one core for thousands of calls and take turns by the scheduler's tick.
Pinning is no way out (8 ms a call when another program occupies the core). So a worker that finds itself on the core of
a thread before it forbids itself that core, which moves it, and takes the prohibition back at once.
"""

from __future__ import annotations

import sys
from typing import Any

from numba import types

from kernelmap_providers.jit.generic import generic
from kernelmap_providers.simd import native, ops

MASK_BYTES = 128
"""A CPU mask of glibc: 1024 CPUs."""

_current_cpu = native.external("sched_getcpu")
_get_affinity = native.external("sched_getaffinity", types.int32, types.int64, types.int64)
_set_affinity = native.external("sched_setaffinity", types.int32, types.int64, types.int64)


def spread(control: int, index: int, slot_bytes: int, cpu_at: int, masks_at: int) -> None:
    """Publish this thread's core in its slot and leave it if a thread of lower index is there. Jitted code only.

    ``cpu_at`` is the place in a slot of 1 + the core's number, ``masks_at`` that of two masks.
    """
    raise NotImplementedError("called from jitted code only")


@generic(spread)
def _spread(control: Any, index: Any, slot_bytes: Any, cpu_at: Any, masks_at: Any) -> Any:
    if sys.platform != "linux":
        return lambda control, index, slot_bytes, cpu_at, masks_at: None

    def run(control: int, index: int, slot_bytes: int, cpu_at: int, masks_at: int) -> None:
        slot = control + slot_bytes * index
        here = 1 + _current_cpu()
        native.atomic_swap(slot + cpu_at, here)
        crowded = False
        for other in range(index):
            crowded = crowded or native.atomic_load(control + slot_bytes * other + cpu_at) == here
        if not crowded or _get_affinity(0, MASK_BYTES, slot + masks_at) < 0:
            return
        rest = slot + masks_at + MASK_BYTES
        for word in range(0, MASK_BYTES, 8):
            ops.store(rest + word, native.load_word(slot + masks_at + word))
        for other in range(index):
            cpu = native.atomic_load(control + slot_bytes * other + cpu_at) - 1
            if 0 <= cpu < 8 * MASK_BYTES:
                word = rest + cpu // 64 * 8
                ops.store(word, native.load_word(word) & ~(1 << (cpu % 64)))
        # Fails, and changes nothing, where no core is left.
        if _set_affinity(0, MASK_BYTES, rest) == 0:
            _set_affinity(0, MASK_BYTES, slot + masks_at)
            native.atomic_swap(slot + cpu_at, 1 + _current_cpu())

    return run
