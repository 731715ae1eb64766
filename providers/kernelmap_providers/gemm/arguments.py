"""How a GEMM's arguments reach its task: one entry point for every format, and the words that it leaves in memory."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import types

from kernelmap_providers.jit.compile import entry
from kernelmap_providers.pool.control import dispatch

TOKENS: Final = 0
ROWS: Final = 8
BLOCKS: Final = 16
X: Final = 24
X_STRIDE: Final = 32
WEIGHTS: Final = 40
WEIGHT_STRIDE: Final = 48
Y: Final = 56
Y_STRIDE: Final = 64
ACTS: Final = 72
BAD_ROW: Final = 80
"""Byte offsets of the words: sizes, addresses and byte strides; last the least bad row of ``x``."""

NO_ROW: Final = 2**63 - 1


def _read_only(element: Any) -> Any:
    return types.Array(element, 2, "A", readonly=True, aligned=False)


ENTRY_ARGUMENTS: Final = (
    _read_only(types.float32),
    _read_only(types.uint8),
    types.Array(types.float32, 2, "A", aligned=False),
    types.Array(types.uint8, 1, "C"),
    *[types.int64] * 5,
)
"""Signature of ``gemm_entry``: views of any stride, alignment and mutability convert to it, nothing is compiled."""


@entry
def gemm_entry(x: Any, weight: Any, y: Any, scratch: Any, rows: int, blocks: int, task: int, control: int,
               threads: int) -> int:  # fmt: skip
    """Run a GEMM task; 0, or 1 + the first row of ``x`` that cannot be quantized."""
    if x.shape[0] == 0 or rows == 0:
        return 0
    words = np.empty(11, np.int64)
    words[0], words[1], words[2] = x.shape[0], rows, blocks
    words[3], words[4] = x.ctypes.data, x.strides[0]
    words[5], words[6] = weight.ctypes.data, weight.strides[0]
    words[7], words[8] = y.ctypes.data, y.strides[0]
    words[9], words[10] = scratch.ctypes.data, NO_ROW
    dispatch(control, task, words.ctypes.data, threads)
    bad = words[10]
    return 0 if bad == NO_ROW else 1 + bad


def contiguous_rows(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """``x`` itself where values of a row lie side by side, else a copy of it."""
    return x if x.strides[1] == x.itemsize or x.shape[1] <= 1 else np.ascontiguousarray(x)


def outcome(status: int, y: npt.NDArray[np.float32]) -> int:
    """The status of a call; a refused one leaves no value in ``y`` that looks right."""
    if status:
        y[...] = np.nan
    return int(status)
