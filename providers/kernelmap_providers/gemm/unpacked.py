"""GEMM and GEMV over weights as stored: nothing is prepared, eight rows at a time are unpacked where they are used.

The many-token form unpacks once and dots four token rows; the other form takes one token at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from kernelmap.spec import BuildSpec
from kernelmap_providers.gemm import arguments as args
from kernelmap_providers.gemm.stored import STORED_FORMATS
from kernelmap_providers.jit.compile import compiled, entry, native_address
from kernelmap_providers.jit.generic import generic
from kernelmap_providers.pool.control import barrier
from kernelmap_providers.pool.workers import POOL
from kernelmap_providers.quantize.rows import quantize_blocks
from kernelmap_providers.simd import kernel, native, ops
from kernelmap_providers.simd.block import GROUP_ROWS
from kernelmap_providers.simd.rows import row_form
from kernelmap_providers.simd.static import Static, StaticType
from kernelmap_providers.simd.target import FORMS, Form, host_form

Run = Callable[..., int]
TOKENS_TOGETHER = 4


@entry
def rows_task(leg: Any, params: int, index: int, count: int, control: int) -> int:
    """Thread ``index``'s share; ``leg`` is ``Static(format, form, "m4" or "m1")``."""
    tokens, blocks = native.load_word(params + args.TOKENS), native.load_word(params + args.BLOCKS)
    x, x_stride = native.load_word(params + args.X), native.load_word(params + args.X_STRIDE)
    acts = native.load_word(params + args.ACTS)
    total = tokens * blocks
    bad = quantize_acts(leg, x, x_stride, blocks, acts, total * index // count, total * (index + 1) // count)
    if bad != args.NO_ROW:
        native.atomic_min(params + args.BAD_ROW, bad)
    barrier(control, count)
    multiply_rows(leg, params, index, count)
    return 0


def quantize_acts(leg: Any, x: int, x_stride: int, blocks: int, out: int, first: int, last: int) -> int:
    """``quantize_blocks`` in the leg's activation format. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


@generic(quantize_acts)
def _quantize_acts(leg: Any, x: Any, x_stride: Any, blocks: Any, out: Any, first: Any, last: Any) -> Any:
    act = Static(STORED_FORMATS[str(leg.parts[0])].act.name)
    return lambda leg, x, x_stride, blocks, out, first, last: quantize_blocks(
        act, x, x_stride, blocks, out, first, last
    )


def multiply_rows(leg: Any, params: int, index: int, count: int) -> None:
    """Dots of all tokens with thread ``index``'s groups of eight weight rows. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


@generic(multiply_rows)
def _multiply_rows(leg: Any, params: Any, index: Any, count: Any) -> Any:
    fmt, form = STORED_FORMATS[str(leg.parts[0])], FORMS[str(leg.parts[1])]
    together = TOKENS_TOGETHER if leg.parts[2] == "m4" else 1
    one, many, act_bytes = kernel.rows(fmt, form, 1), kernel.rows(fmt, form, together), fmt.act.bytes

    def run(leg: Any, params: int, index: int, count: int) -> None:
        tokens, rows = native.load_word(params + args.TOKENS), native.load_word(params + args.ROWS)
        blocks, acts = native.load_word(params + args.BLOCKS), native.load_word(params + args.ACTS)
        weights, stride = native.load_word(params + args.WEIGHTS), native.load_word(params + args.WEIGHT_STRIDE)
        y, y_stride = native.load_word(params + args.Y), native.load_word(params + args.Y_STRIDE)
        act_stride = blocks * act_bytes
        groups = (rows + GROUP_ROWS - 1) // GROUP_ROWS
        buffer = np.empty((together, GROUP_ROWS), np.float32)
        for group in range(groups * index // count, groups * (index + 1) // count):
            first = GROUP_ROWS * group
            here = min(GROUP_ROWS, rows - first)
            whole = here == GROUP_ROWS
            w = weights + first * stride
            token = 0
            while token < tokens:
                size = together if tokens - token >= together else 1
                out, out_stride = y + token * y_stride + 4 * first, y_stride
                if not whole:
                    out, out_stride = buffer.ctypes.data, 4 * GROUP_ROWS
                a = acts + token * act_stride
                if size == together:
                    many(w, stride, here, blocks, a, act_stride, out, out_stride)
                else:
                    one(w, stride, here, blocks, a, act_stride, out, out_stride)
                if not whole:
                    for t in range(size):
                        for row in range(here):
                            ops.store(y + (token + t) * y_stride + 4 * (first + row), buffer[t, row])
                token += size

    return run


def build(spec: BuildSpec) -> Run:
    """Builder for many tokens: ``run(x, weight, y, workspace, threads)``, four token rows at a time.

    ``x`` fp32 ``[R, K]``, ``weight`` uint8 ``[N, row_bytes]`` as stored, ``y`` fp32 ``[R, N]``, ``workspace`` uint8 for
    the quantized activations (see ``gemm.packed.workspace_bytes``).
    """
    return unpacked_gemm(spec.dtypes["weight"], host_form(spec.isa), spec.dims["N"], spec.dims["K"])


def build_per_row(spec: BuildSpec) -> Run:
    """Builder of the per-row form (decode): as ``build``, one token row at a time."""
    return unpacked_gemm(spec.dtypes["weight"], host_form(spec.isa), spec.dims["N"], spec.dims["K"], together=False)


def unpacked_gemm(name: str, form: Form, rows: int, values: int, together: bool = True) -> Run:
    """``build`` for a given format and sizes."""
    fmt = STORED_FORMATS[name]
    leg = StaticType((name, row_form(form).name, "m4" if together else "m1"))
    task = native_address(rows_task, leg, *[types.int64] * 4)
    call = compiled(args.gemm_entry, *args.ENTRY_ARGUMENTS)
    blocks = values // fmt.packed.values

    def run(x: npt.NDArray[np.float32], weight: npt.NDArray[np.uint8], y: npt.NDArray[np.float32],
            workspace: npt.NDArray[np.uint8], threads: int) -> int:  # fmt: skip
        x = args.contiguous_rows(x)
        return args.outcome(call(x, weight, y, workspace, rows, blocks, task, POOL.control(threads), threads), y)

    return run
