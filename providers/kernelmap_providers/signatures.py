"""Numba types of kernel arguments: builders compile with them, so that no call waits for the compiler.

Inputs are typed read-only and contiguous, which accepts writable arrays too: one compilation serves both.
"""

from __future__ import annotations

from numba import types

RANGE = (types.int64, types.int64, types.int64)
"""begin, end, worker."""
FLOATS_1 = types.Array(types.float32, 1, "C", readonly=True)
FLOATS_2 = types.Array(types.float32, 2, "C", readonly=True)
INTS_2 = types.Array(types.int32, 2, "C", readonly=True)
BYTES_1 = types.Array(types.uint8, 1, "C", readonly=True)
VECTOR = types.Array(types.float32, 1, "C")
MATRIX = types.Array(types.float32, 2, "C")
INT_MATRIX = types.Array(types.int32, 2, "C")
SCRATCH = types.Array(types.uint8, 2, "C")
"""One row of bytes a worker."""
