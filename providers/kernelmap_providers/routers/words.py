"""A router's call: what its task finds in memory, and the one entry point of all routers.

The words lie at the start of the ``scores`` scratch, each thread's part behind them; `WORKER_BYTES` and `UNIT_BYTES`
are the sizes that the maps declare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numba import types

from kernelmap_providers.arguments import Array, tuple_of
from kernelmap_providers.jit.borrowed import BorrowedArray
from kernelmap_providers.jit.compile import entry, inlined, sealed
from kernelmap_providers.memory import put, word
from kernelmap_providers.pool.control import dispatch
from kernelmap_providers.pool.workers import POOL
from kernelmap_providers.simd import ops

ROWS: Final = 0
EXPERTS: Final = 8
SLOTS: Final = 16
LOGITS: Final = 24
LOGITS_STRIDE: Final = 32
BIAS: Final = 40
INDICES: Final = 48
WEIGHTS: Final = 56
WORKERS: Final = 64
BAD_ROW: Final = 72
RULE: Final = 80
SCALE: Final = 88
GROUPS: Final = 96
KEEP: Final = 104
"""Byte offsets of the words: sizes, addresses and byte strides; the least refused row; the contract's parameters."""
CALL_BYTES: Final = 256

NO_ROW: Final = 2**63 - 1
UNIT: Final = 64
"""Experts are padded to whole units: as many as bits of a word."""
UNIT_BYTES: Final = 16 * UNIT
"""Scratch of a worker for each unit of experts: four rows of 32 bits, see `row_at`."""
WORKER_BYTES: Final = 3200
"""Scratch of a worker beside them, see ``topk``."""

TASK_ARGUMENTS: Final = (types.int64,) * 4
"""call, thread's index, number of threads, the pool's control block: a task's arguments, behind a static."""
Parameters = tuple[int, float, int, int]
"""Rule of renormalisation, scale, groups and kept groups; zero where the contract has no such thing."""


@inlined
def padded(experts: int) -> int:
    """``experts`` rounded up to whole units."""
    return (experts + UNIT - 1) // UNIT * UNIT


@inlined
def row_at(mine: int, experts: int, number: int) -> Any:
    """Address of the worker's row ``number`` (0 to 3) of ``padded(experts)`` values of 32 bits."""
    return mine + WORKER_BYTES + 4 * padded(experts) * number


ENTRY_ARGUMENTS: Final = (
    BorrowedArray(types.float32, 2, True), BorrowedArray(types.float32, 1, True), BorrowedArray(types.int32, 2),
    BorrowedArray(types.float32, 2), BorrowedArray(types.uint8, 1),
    tuple_of(*[types.int64] * 3), types.float32, *[types.int64] * 3,
)  # fmt: skip
"""Views of any stride, alignment and mutability convert to these, so that nothing is compiled in a call."""


@entry
def route_entry(logits: Any, bias: Any, indices: Any, weights: Any, scores: Any, numbers: Any, scale: Any, task: int,
                control: int, threads: int) -> int:  # fmt: skip
    """Run a router's task on all rows; ``numbers`` are rule, groups and kept groups.

    Returns 0, or 1 + the least refused row: then every index is -1 and every weight NaN.
    """
    rows, experts = logits.shape
    slots = indices.shape[1]
    if rows == 0:
        return 0
    call = scores.ctypes.data
    for place, value in ((ROWS, rows), (EXPERTS, experts), (SLOTS, slots), (RULE, numbers[0]),
                         (GROUPS, numbers[1]), (KEEP, numbers[2]), (LOGITS_STRIDE, logits.strides[0]),
                         (BAD_ROW, NO_ROW)):  # fmt: skip
        put(call + place, value)
    put(call + LOGITS, logits.ctypes.data)
    put(call + BIAS, bias.ctypes.data if len(bias) else 0)
    put(call + INDICES, indices.ctypes.data)
    put(call + WEIGHTS, weights.ctypes.data)
    put(call + WORKERS, call + CALL_BYTES)
    ops.store(call + SCALE, scale)
    dispatch(control, task, call, min(threads, rows))
    bad = word(call + BAD_ROW)
    if bad == NO_ROW:
        return 0
    for place in range(rows * slots):
        ops.store(word(call + INDICES) + 4 * place, np.int32(-1))
        ops.store(word(call + WEIGHTS) + 4 * place, np.float32(np.nan))
    return int(1 + bad)


def caller(task: int, parameters: Parameters, serial: bool) -> Callable[..., int]:
    """``run(logits, bias, indices, weights, scores, threads)`` of the task at address ``task``.

    logits fp32 ``[R, E]``, bias fp32 ``[E]``, indices int32 and weights fp32 ``[R, K]``, contiguous; scores bytes as
    the map says. A ``serial`` router uses the calling thread alone.
    """
    rule, scale, groups, keep = parameters
    numbers, factor = (rule, groups, keep), np.float32(scale)
    call = sealed(route_entry, *ENTRY_ARGUMENTS)

    def run(logits: Array, bias: Array, indices: Array, weights: Array, scores: Array, threads: int) -> int:
        if logits.strides[1] != logits.itemsize:
            logits = np.ascontiguousarray(logits)
        threads = 1 if serial else threads
        control = POOL.control(threads)
        return int(call(logits, bias, indices, weights, scores, numbers, factor, task, control, threads))

    return run
