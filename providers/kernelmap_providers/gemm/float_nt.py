"""fp32 GEMM and GEMV by the 8-lane rule: y[R, N] = x[R, K] times weight[N, K] transposed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernelmap.spec import BuildSpec
from kernelmap_providers.arguments import FLOATS_2, FLOATS_2_OUT, RANGE, Array, given
from kernelmap_providers.elementary import all_finite, dot_lanes
from kernelmap_providers.jit.compile import compiled, entry
from kernelmap_providers.threads import run_ranges


@entry
def rows_range(begin: int, end: int, _worker: int, x: Any, weight: Any, y: Any) -> int:
    """Rows ``begin`` to ``end - 1`` of y. Returns 0, or 1 + the first row of x that is not finite."""
    for row in range(begin, end):
        if not all_finite(x[row]):
            return row + 1
        for n in range(weight.shape[0]):
            y[row, n] = dot_lanes(weight[n], x[row])
    return 0


@entry
def columns_range(begin: int, end: int, _worker: int, x: Any, weight: Any, y: Any) -> int:
    """Columns ``begin`` to ``end - 1`` of y; each weight row is read once. Returns as `rows_range`."""
    for row in range(x.shape[0]):
        if not all_finite(x[row]):
            return row + 1
    for n in range(begin, end):
        for row in range(x.shape[0]):
            y[row, n] = dot_lanes(weight[n], x[row])
    return 0


def gemm_nt_fp32(spec: BuildSpec) -> Callable[..., int]:
    """Builds the form for many rows: threads own ranges of rows (variant ``serial``: one thread).

    On a nonzero status y is all NaN.
    """
    return _build(spec, rows_range, axis=0)


def gemv_fp32(spec: BuildSpec) -> Callable[..., int]:
    """Builds the form for few rows: threads own ranges of columns (variant ``serial``: one thread).

    On a nonzero status y is all NaN.
    """
    return _build(spec, columns_range, axis=1)


def _build(spec: BuildSpec, kernel: Any, axis: int) -> Callable[..., int]:
    compiled(kernel, *RANGE, FLOATS_2, FLOATS_2, FLOATS_2_OUT)
    serial = spec.variant == "serial"

    def run(x: Array, weight: Array, y: Array, threads: int) -> int:
        status = run_ranges(kernel, y.shape[axis], 1 if serial else threads, given(x), given(weight), y)
        if status:
            y.fill(np.nan)
        return status

    return run
